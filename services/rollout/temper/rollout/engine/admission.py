"""The desk of an engine: which requests are open, which sequences are kept, and what is refused at the door.

Shared by all engines, so that limits and refusals are the same everywhere. Lives in the event loop.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence

from temper.rollout.engine.base import Completion, Emitted, FinishReason, Request, Sampling, Sink
from temper.runtime.errors import Conflict, Rejected, TemperError, Unavailable


class Desk:
    """Open futures and kept sequences by request id."""

    def __init__(self, max_context: int) -> None:
        self.max_context = max_context
        self.version = -1
        self._vocab = 0
        self._futures: dict[str, asyncio.Future[Completion]] = {}
        self._sinks: dict[str, Sink] = {}
        self._open: dict[str, tuple[Request, int]] = {}  # with the context before the first output token
        self._kept: dict[str, int] = {}  # context length

    def open(self, max_context: int, vocab: int) -> None:
        """Set the limits, once a policy is known."""
        self.max_context, self._vocab = max_context, vocab

    def is_open(self, request_id: str) -> bool:
        """Whether a request has not finished."""
        return request_id in self._open

    def register(
        self,
        request: Request,
        loop: asyncio.AbstractEventLoop,
        cancel: Callable[[str], None],
        sink: Sink | None = None,
    ) -> asyncio.Future[Completion]:
        """Check a request and open a future for it. A caller that cancels the future cancels the request."""
        context = self._check(request)
        self._kept.pop(request.continues or "", None)
        future: asyncio.Future[Completion] = loop.create_future()
        self._futures[request.request_id] = future
        self._open[request.request_id] = (request, context)
        if sink is not None:
            self._sinks[request.request_id] = sink

        def forward_cancel(done: asyncio.Future[Completion]) -> None:
            if done.cancelled():
                cancel(request.request_id)

        future.add_done_callback(forward_cancel)
        return future

    def emit(self, emitted: Sequence[Emitted]) -> None:
        """Show what a step added to those who watch."""
        for each in emitted:
            if (sink := self._sinks.get(each.request_id)) is not None:
                sink(each)

    def resolve(self, finished: Sequence[Completion]) -> None:
        """Close requests with their completions."""
        for completion in finished:
            request, context = self._open.pop(completion.request_id)
            future = self._futures.pop(completion.request_id)
            self._sinks.pop(completion.request_id, None)
            if request.keep and completion.finish in (FinishReason.STOP, FinishReason.LENGTH):
                self._kept[request.request_id] = context + len(completion.tokens)
            if not future.done():
                future.set_result(completion)

    def forget(self, request_id: str) -> bool:
        """Stop keeping a sequence; says whether it was kept."""
        return self._kept.pop(request_id, None) is not None

    def fail(self, request_id: str, error: TemperError) -> None:
        """A request has no completion and never will."""
        self._open.pop(request_id, None)
        self._sinks.pop(request_id, None)
        future = self._futures.pop(request_id, None)
        if future is not None and not future.done():
            future.set_exception(error)

    def fail_all(self, why: str = "engine: stopped before the request finished") -> None:
        """The engine has stopped: nobody waits in vain."""
        futures, self._futures = self._futures, {}
        self._open.clear()
        self._sinks.clear()
        for future in futures.values():
            if not future.done():
                future.set_exception(Unavailable(why))

    def _check(self, request: Request) -> int:
        """Context length of a valid request."""
        name = f"request {request.request_id}"
        self._check_id(name, request)
        if request.continues is not None and request.continues not in self._kept:
            raise Rejected(
                f"{name}: continues {request.continues!r}, which is not a kept sequence", field="continues"
            )
        if not request.tokens:
            raise Rejected(f"{name}: tokens is empty; give at least one", field="tokens")
        if min(request.tokens) < 0 or max(request.tokens) >= self._vocab:
            raise Rejected(f"{name}: tokens must lie in [0, {self._vocab})", field="tokens")
        check_sampling(name, request.sampling, self._vocab)
        context = self._kept.get(request.continues or "", 0) + len(request.tokens)
        if context >= self.max_context:
            raise Rejected(
                f"{name}: context of {context} tokens is at or over the limit of {self.max_context}",
                field="tokens",
                hint="shorten it, or raise engine.max_context where the model allows it",
            )
        return context

    def _check_id(self, name: str, request: Request) -> None:
        live = self._open.get(request.request_id)
        if live is not None and live[0].attempt != request.attempt:
            raise Conflict(
                f"{name}: attempt {live[0].attempt} is open; cancel it before attempt {request.attempt}"
            )
        if live is not None:
            raise Conflict(f"{name}: the id is in use by the same attempt")
        if request.request_id in self._kept:
            raise Conflict(f"{name}: the id is in use by a kept sequence; release it first")


def check_sampling(name: str, sampling: Sampling, vocab: int) -> None:
    """Refuse values that no engine can honour. Written so that NaN is refused too."""
    if sampling.max_tokens < 1:
        raise Rejected(f"{name}: max_tokens must be at least 1, got {sampling.max_tokens}")
    if not (sampling.temperature >= 0 and math.isfinite(sampling.temperature)):
        raise Rejected(f"{name}: temperature must be 0 (greedy) or more, got {sampling.temperature}")
    if not 0 < sampling.top_p <= 1:
        raise Rejected(f"{name}: top_p must lie in (0, 1], got {sampling.top_p}")
    if not 0 <= sampling.min_p < 1:
        raise Rejected(f"{name}: min_p must lie in [0, 1), got {sampling.min_p}")
    if sampling.top_k < 0:
        raise Rejected(f"{name}: top_k must be 0 (all) or more, got {sampling.top_k}")
    if not (sampling.repetition_penalty > 0 and math.isfinite(sampling.repetition_penalty)):
        raise Rejected(f"{name}: repetition_penalty must be over 0, got {sampling.repetition_penalty}")
    for field in ("presence_penalty", "frequency_penalty"):
        if not math.isfinite(getattr(sampling, field)):
            raise Rejected(f"{name}: {field} must be finite, got {getattr(sampling, field)}")
    if not 0 <= sampling.top_logprobs <= vocab:
        raise Rejected(f"{name}: top_logprobs must lie in [0, {vocab}], got {sampling.top_logprobs}")
    for token, addend in sampling.logit_bias:
        if not 0 <= token < vocab or not math.isfinite(addend):
            raise Rejected(
                f"{name}: logit_bias ({token}, {addend}) needs a token in [0, {vocab}) and a finite addend"
            )
