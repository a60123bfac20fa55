"""A request on its way through the twin, and a finished one that waits to be continued."""

from __future__ import annotations

from dataclasses import dataclass, field

from temper.rollout.engine.base import Completion, FinishReason, Request
from temper.rollout.engine.book import Block
from temper.rollout.engine.drawn import Drawn
from temper.rollout.engine.spans import Spans


@dataclass(slots=True, eq=False)
class Sequence:
    """One request, from queue to completion; or, finished and kept, what a later request may continue."""

    request: Request
    tokens: list[int]
    """The whole context, output included."""
    own_start: int
    """Position of the request's first own token."""
    limit: int
    """Most output tokens, the context limit included."""
    arrival: int
    """Order of arrival."""
    queued_at: int
    """Step at which it came into the queue."""
    resumes: bool
    """Whether it continues a kept sequence; such requests are admitted first, they hold memory."""
    started: bool = False
    """Whether it was admitted before."""
    blocks: list[Block] = field(default_factory=list)
    """Its KV."""
    computed: int = 0
    """Tokens whose KV there is."""
    oldest: int = -1
    """Lowest weight version of any of its KV."""
    shareable: bool = True
    """Whether all of its KV is of the version it was admitted under, so that its blocks may be shared."""
    cached: int = 0
    """Context tokens not computed for it."""
    output: list[Drawn] = field(default_factory=list)
    """What was drawn."""
    versions: Spans = field(default_factory=Spans)
    """Over the output."""
    origins: Spans = field(default_factory=Spans)
    """Over the output: the oldest KV read."""
    prefilled: Spans = field(default_factory=Spans)
    """Over the own tokens."""
    prompt: tuple[float | None, ...] = ()
    """Prompt logprobs, when asked for."""

    def complete(self, finish: FinishReason) -> Completion:
        """The result as of now."""
        sampling = self.request.sampling
        return Completion(
            request_id=self.request.request_id,
            tokens=tuple(drawn.token for drawn in self.output),
            logprobs_raw=tuple(drawn.raw for drawn in self.output),
            logprobs=tuple(drawn.processed for drawn in self.output),
            log_surviving_mass=tuple(drawn.surviving for drawn in self.output),
            weight_versions=self.versions.frozen(),
            prefill_versions=self.prefilled.frozen(),
            finish=finish,
            cached_tokens=self.cached,
            kv_origin_versions=self.origins.frozen(),
            top_logprobs=tuple(drawn.top for drawn in self.output) if sampling.top_logprobs else (),
            prompt_logprobs=self.prompt,
            attempt=self.request.attempt,
            stopped_by=self.output[-1].token if finish is FinishReason.STOP else None,
        )
