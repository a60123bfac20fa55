"""The desk of an engine: which requests are open, which sequences are kept, and what is refused at the door.

Shared by all engines, so that limits and refusals are the same everywhere. Lives in the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from temper.rollout.engine.base import Completion, FinishReason, Request
from temper.runtime.errors import Conflict, Rejected, Unavailable


class Desk:
    """Open futures and kept sequences by request id."""

    def __init__(self, max_context: int) -> None:
        self.max_context = max_context
        self.version = -1
        self._vocab = 0
        self._futures: dict[str, asyncio.Future[Completion]] = {}
        self._open: dict[
            str, tuple[Request, int]
        ] = {}  # with the context length before the first output token
        self._kept: dict[str, int] = {}  # context length

    def open(self, max_context: int, vocab: int) -> None:
        """Set the limits, once a policy is known."""
        self.max_context, self._vocab = max_context, vocab

    def is_open(self, request_id: str) -> bool:
        """Whether a request has not finished."""
        return request_id in self._open

    def register(
        self, request: Request, loop: asyncio.AbstractEventLoop, cancel: Callable[[str], None]
    ) -> asyncio.Future[Completion]:
        """Check a request and open a future for it. A caller that cancels the future cancels the request."""
        context = self._check(request)
        self._kept.pop(request.continues or "", None)
        future: asyncio.Future[Completion] = loop.create_future()
        self._futures[request.request_id] = future
        self._open[request.request_id] = (request, context)

        def forward_cancel(done: asyncio.Future[Completion]) -> None:
            if done.cancelled():
                cancel(request.request_id)

        future.add_done_callback(forward_cancel)
        return future

    def resolve(self, finished: Sequence[Completion]) -> None:
        """Close requests with their completions."""
        for completion in finished:
            request, context = self._open.pop(completion.request_id)
            future = self._futures.pop(completion.request_id)
            if request.keep and completion.finish in (FinishReason.STOP, FinishReason.LENGTH):
                self._kept[request.request_id] = context + len(completion.tokens)
            if not future.done():
                future.set_result(completion)

    def forget(self, request_id: str) -> bool:
        """Stop keeping a sequence; says whether it was kept."""
        return self._kept.pop(request_id, None) is not None

    def fail_all(self) -> None:
        """The engine has stopped: nobody waits in vain."""
        futures, self._futures = self._futures, {}
        self._open.clear()
        for future in futures.values():
            if not future.done():
                future.set_exception(Unavailable("engine: stopped before the request finished"))

    def _check(self, request: Request) -> int:
        """Context length of a valid request."""
        name = f"request {request.request_id}"
        if request.request_id in self._open or request.request_id in self._kept:
            raise Conflict(f"{name}: the id is in use")
        if request.continues is not None and request.continues not in self._kept:
            raise Rejected(f"{name}: continues {request.continues!r}, which is not a kept sequence")
        if not request.tokens:
            raise Rejected(f"{name}: tokens is empty; give at least one")
        if min(request.tokens) < 0 or max(request.tokens) >= self._vocab:
            raise Rejected(f"{name}: tokens must lie in [0, {self._vocab})")
        _check_sampling(name, request)
        context = self._kept.get(request.continues or "", 0) + len(request.tokens)
        if context >= self.max_context:
            raise Rejected(
                f"{name}: context of {context} tokens is at or over the limit of {self.max_context}"
            )
        return context


def _check_sampling(name: str, request: Request) -> None:
    sampling = request.sampling
    if sampling.max_tokens < 1:
        raise Rejected(f"{name}: max_tokens must be at least 1, got {sampling.max_tokens}")
    if sampling.temperature < 0:
        raise Rejected(f"{name}: temperature must be 0 (greedy) or more, got {sampling.temperature}")
    if not 0 < sampling.top_p <= 1:
        raise Rejected(f"{name}: top_p must lie in (0, 1], got {sampling.top_p}")
    if not 0 <= sampling.min_p < 1:
        raise Rejected(f"{name}: min_p must lie in [0, 1), got {sampling.min_p}")
    if sampling.top_k < 0:
        raise Rejected(f"{name}: top_k must be 0 (all) or more, got {sampling.top_k}")
