"""One request, from the queue to its completion, over as many submissions to the vendor as it takes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from temper.rollout.engine.base import Completion, Emitted, FinishReason, Request
from temper.rollout.engine.drawn import Drawn
from temper.rollout.engine.spans import Spans


@dataclass(slots=True, eq=False)
class Play:
    """A request on its way."""

    request: Request
    """As submitted."""
    prompt: list[int]
    """What it continues, then its own tokens."""
    limit: int
    """Most output tokens, the context limit included."""
    running: Any = None
    """The vendor's result object while a submission is in flight."""
    interrupted: bool = False
    """Whether that submission was told to stop so that the request can be sent again."""
    timer: asyncio.Task[None] | None = None
    """Watches the deadline."""
    done: bool = False
    """Whether it has its completion; what the vendor says after that is ignored."""
    cached: int = 0
    """Context tokens that the vendor reused for the first submission."""
    output: list[Drawn] = field(default_factory=list)
    """What was drawn."""
    versions: Spans = field(default_factory=Spans)
    """Over the output; no update runs while a submission is in flight, so each is of one version."""
    version: int = -1
    """Of the latest submission: all KV it reads is of this version."""

    def context(self) -> list[int]:
        """Ids so far."""
        return [*self.prompt, *(drawn.token for drawn in self.output)]

    def ended(self) -> FinishReason | None:
        """Whether the output is at its end, whatever the vendor says of it: an abort may come with the last token."""
        if self.output and self.output[-1].token in self.request.sampling.stop_token_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(self.output) >= self.limit else None

    def take(self, drawn: list[Drawn]) -> Emitted:
        """Append what a submission brought."""
        self.output += drawn
        self.versions.extend(len(drawn), self.version)
        asked = self.request.sampling.top_logprobs > 0
        return Emitted(
            self.request.request_id,
            tuple(each.token for each in drawn),
            tuple(each.raw for each in drawn),
            tuple(each.processed for each in drawn),
            tuple(each.top for each in drawn) if asked else (),
            self.version,
        )

    def complete(self, finish: FinishReason, *, for_training: bool) -> Completion:
        """The result as of now."""
        prefilled = Spans()
        prefilled.extend(len(self.request.tokens) if self.version >= 0 else 0, self.version)
        return Completion(
            request_id=self.request.request_id,
            tokens=tuple(each.token for each in self.output),
            logprobs_raw=tuple(each.raw for each in self.output),
            logprobs=tuple(each.processed for each in self.output),
            log_surviving_mass=tuple(each.surviving for each in self.output),
            weight_versions=self.versions.frozen(),
            prefill_versions=prefilled.frozen(),
            finish=finish,
            cached_tokens=self.cached,
            kv_origin_versions=self.versions.frozen(),
            top_logprobs=tuple(each.top for each in self.output)
            if self.request.sampling.top_logprobs
            else (),
            attempt=self.request.attempt,
            stopped_by=self.output[-1].token if finish is FinishReason.STOP else None,
            for_training=for_training,
        )
