"""A request on its way through the engine, and a finished one that waits to be continued."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from temper.rollout.engine.base import Completion, FinishReason, Request
from temper.rollout.engine.spans import Spans
from temper.rollout.engine.stream import stream_key
from temper.rollout.engine.torch.cache import Slab


@dataclass(slots=True, eq=False)
class Kept:
    """A finished sequence that may be continued."""

    tokens: list[int]
    """The whole context, output included."""
    buffer: Tensor | None
    """KV of all of it but the last token, which was never fed; None once evicted."""


@dataclass(slots=True, eq=False)
class Sequence:
    """One request, from queue to completion. ``eq=False``: two sequences are the same only if they are one."""

    request: Request
    tokens: list[int]
    """The whole context so far, output included."""
    own_start: int
    """Position of the request's first own token: what lies before belongs to the sequence it continues."""
    limit: int
    """Most output tokens, the context limit included."""
    resumes: Kept | None
    """What it continues, until it is admitted."""
    key: int
    """Stream key of its random numbers."""
    stops: frozenset[int]
    """Stop token ids."""
    cached: int = 0
    """Context tokens not computed for it."""
    slab: Slab[Sequence] | None = None
    """Where it runs."""
    row: int = -1
    """Its row there."""
    raw: list[float] = field(default_factory=list)
    """Per output token, as in :class:`Completion`."""
    processed: list[float] = field(default_factory=list)
    """As above."""
    surviving: list[float] = field(default_factory=list)
    """As above."""
    versions: Spans = field(default_factory=Spans)
    """Over the output."""
    prefilled: Spans = field(default_factory=Spans)
    """Over the request's own tokens."""

    @classmethod
    def of(cls, request: Request, resumes: Kept | None, max_context: int) -> Sequence:
        """Queue form of a request."""
        before = resumes.tokens if resumes else []
        tokens = [*before, *request.tokens]
        return cls(
            request=request,
            tokens=tokens,
            own_start=len(before),
            limit=min(request.sampling.max_tokens, max_context - len(tokens)),
            resumes=resumes,
            key=stream_key(request.seed, request.sample_index),
            stops=frozenset(request.sampling.stop_token_ids),
        )

    def take(
        self, token: int, raw: float, processed: float, surviving: float, version: int
    ) -> FinishReason | None:
        """Append one drawn token; says whether that was the last."""
        self.tokens.append(token)
        self.raw.append(raw)
        self.processed.append(processed)
        self.surviving.append(surviving)
        self.versions.extend(1, version)
        if token in self.stops:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(self.raw) >= self.limit else None

    def complete(self, finish: FinishReason) -> Completion:
        """The result as of now."""
        return Completion(
            request_id=self.request.request_id,
            tokens=tuple(self.tokens[len(self.tokens) - len(self.raw) :]),
            logprobs_raw=tuple(self.raw),
            logprobs=tuple(self.processed),
            log_surviving_mass=tuple(self.surviving),
            weight_versions=self.versions.frozen(),
            prefill_versions=self.prefilled.frozen(),
            finish=finish,
            cached_tokens=self.cached,
        )
