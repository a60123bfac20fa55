"""A request on its way through the engine, and a finished one that waits to be continued."""

from __future__ import annotations

from dataclasses import dataclass, field

from temper.rollout.engine.base import Completion, Emitted, FinishReason, Request, Span
from temper.rollout.engine.spans import Spans
from temper.rollout.engine.stream import stream_key
from temper.rollout.engine.torch.context import Context, Course
from temper.rollout.engine.torch.pages import PageIndex
from temper.rollout.engine.torch.sample import Ask, Drawn, TopLogprobs


@dataclass(slots=True, eq=False)
class Kept:
    """A finished sequence that may be continued."""

    tokens: list[int]
    """The whole context, output included."""
    course: Course
    """How its KV was computed."""
    context: Context | None
    """KV of all of it but the last token, which was never fed; None once its slots were wanted elsewhere."""


@dataclass(slots=True, eq=False)
class Sequence:
    """One request, from queue to completion. ``eq=False``: two sequences are the same only if they are one."""

    request: Request
    tokens: list[int]
    """The whole context so far, output included."""
    own_start: int
    """Position of the request's first own token: what lies before belongs to the sequence it continues."""
    output_start: int
    """Position of the first output token."""
    limit: int
    """Most output tokens, the context limit included."""
    course: Course
    """How its KV is computed."""
    resumes: Kept | None
    """What it continues, until it is admitted."""
    watched: bool
    """Whether somebody wants to see tokens as they come."""
    asking: Ask
    """How its next token is drawn."""
    stops: frozenset[int]
    """Stop token ids."""
    context: Context | None = None
    """Its KV while it is admitted; a follower's is its leader's until the prompt is computed."""
    leader: Sequence | None = None
    """Who computes the prompt for it."""
    followers: list[Sequence] = field(default_factory=list)
    """Whose prompt it computes."""
    arrival: int = 0
    """Place in the queue."""
    arrived: int = 0
    """Step in which it took that place."""
    admission: int = 0
    """Grows with every admission."""
    cached: int = -1
    """Context tokens not computed for it; -1 before its first admission."""
    oldest: int | None = None
    """Oldest version of the KV it reads."""
    shown: int = 0
    """Output tokens that were emitted."""
    accepted: int = 0
    """Output tokens that a draft proposed."""
    pages: PageIndex | None = None
    """What is known of its pages, once a decode row of it read a part of its context only."""
    raw: list[float] = field(default_factory=list)
    """Per output token, as in :class:`Completion`."""
    processed: list[float] = field(default_factory=list)
    """As above."""
    surviving: list[float] = field(default_factory=list)
    """As above."""
    top: list[TopLogprobs] = field(default_factory=list)
    """As above."""
    scores: list[float | None] | None = None
    """Raw logprobs of the own prompt tokens, once computed."""
    marks: list[tuple[int, int, int]] = field(default_factory=list)
    """(output token from which on, weight version, oldest version of the KV read), at each change."""
    prefilled: Spans = field(default_factory=Spans)
    """Over the request's own tokens."""
    scoring: list[float | None] = field(default_factory=list)
    """Prompt logprobs while they are computed."""

    @classmethod
    def of(
        cls, request: Request, resumes: Kept | None, max_context: int, *, exact: bool, watched: bool = False
    ) -> Sequence:
        """Queue form of a request."""
        before = resumes.tokens if resumes else []
        tokens = [*before, *request.tokens]
        course = Course(exact, [*resumes.course.prompts] if resumes else [])
        # The last token before was drawn and never fed: it is computed with what follows it.
        course.prompts.append((max(0, len(before) - 1), len(tokens)))
        return cls(
            request=request,
            tokens=tokens,
            own_start=len(before),
            output_start=len(tokens),
            limit=min(request.sampling.max_tokens, max_context - len(tokens)),
            course=course,
            resumes=resumes,
            watched=watched,
            asking=Ask(request.sampling, stream_key(request.seed, request.sample_index), tokens, len(tokens)),
            stops=frozenset(request.sampling.stop_token_ids),
        )

    @property
    def wants_scores(self) -> bool:
        """Whether its prompt's logprobs are still to be computed."""
        return self.request.prompt_logprobs and self.scores is None

    def computed(self, start: int, stop: int, version: int) -> None:
        """Note that the KV of ``[start, stop)`` was computed under ``version``, or found as such."""
        self.oldest = version if self.oldest is None else min(self.oldest, version)
        self.prefilled.extend(min(stop, self.output_start) - max(start, self.own_start), version)

    def uncompute(self) -> None:
        """Its KV is gone."""
        self.oldest = None
        self.prefilled = Spans()
        self.scoring = []

    def take(self, drawn: Drawn, version: int) -> FinishReason | None:
        """Append what one step drew, up to a stop or the limit; says whether that was the end."""
        for at, token in enumerate(drawn.tokens):
            if drawn.top:
                self.top.append(drawn.top[at])
            numbers = drawn.raw[at], drawn.processed[at], drawn.surviving[at]
            reason = self.append(token, *numbers, version)
            if reason is not None:
                self.accepted += min(at + 1, drawn.accepted)
                return reason
        self.accepted += drawn.accepted
        return None

    def append(
        self, token: int, raw: float, processed: float, surviving: float, version: int
    ) -> FinishReason | None:
        """Append one token; says whether it was the last."""
        oldest = version if self.oldest is None else self.oldest
        marks, raws = self.marks, self.raw
        if not marks or marks[-1][1] != version or marks[-1][2] != oldest:
            marks.append((len(raws), version, oldest))
        self.tokens.append(token)
        raws.append(raw)
        self.processed.append(processed)
        self.surviving.append(surviving)
        if token in self.stops:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(raws) >= self.limit else None

    def emitted(self, version: int) -> Emitted:
        """What was added since the last call."""
        new = slice(self.shown, None)
        tokens = tuple(self.tokens[self.output_start + self.shown :])
        self.shown = len(self.raw)
        return Emitted(
            self.request.request_id,
            tokens,
            tuple(self.raw[new]),
            tuple(self.processed[new]),
            tuple(self.top[new]),
            version,
        )

    def _spans(self, which: int) -> tuple[Span, ...]:
        spans = Spans()
        ends = [*(mark[0] for mark in self.marks[1:]), len(self.raw)]
        for mark, end in zip(self.marks, ends, strict=False):  # no marks, no spans
            spans.extend(end - mark[0], mark[which])
        return spans.frozen()

    def complete(self, finish: FinishReason, *, exact: bool = True) -> Completion:
        """The result as of now; ``exact``: by the weights as they were published."""
        tokens = tuple(self.tokens[self.output_start :])
        return Completion(
            request_id=self.request.request_id,
            tokens=tokens,
            logprobs_raw=tuple(self.raw),
            logprobs=tuple(self.processed),
            log_surviving_mass=tuple(self.surviving),
            weight_versions=self._spans(1),
            prefill_versions=self.prefilled.frozen(),
            finish=finish,
            cached_tokens=max(0, self.cached),
            kv_origin_versions=self._spans(2),
            top_logprobs=tuple(self.top),
            prompt_logprobs=tuple(self.scores or ()),
            attempt=self.request.attempt,
            stopped_by=tokens[-1] if finish is FinishReason.STOP else None,
            drafts_accepted=self.accepted,
            attention="dense" if self.pages is None else "sparse",
            for_training=exact and self.pages is None,
        )
