"""One output under way: the engine's tokens on one side, shown text with its tokens on the other.

The engine knows ids only. Here ids become text, stop strings are watched for, and when one completes the request is
cancelled and everything (ids, logprobs, versions, text) is cut at one place.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from temper.rollout.engine.base import Completion, Emitted, Engine, FinishReason, Request, Span
from temper.rollout.serving.stops import Cutter
from temper.runtime.clock import Clock
from temper.runtime.errors import Unavailable

_GRACE_S = (
    30.0  # beyond the request's own deadline, which the engine keeps: passes only if the engine is stuck
)

Ending = Literal["stop", "length", "abort", "deadline", "tool_limit"]


@dataclass(frozen=True, slots=True)
class Token:
    """One output token with what is said about it."""

    id: int
    """Id."""
    raw: float
    """Raw logprob."""
    top: tuple[tuple[int, float], ...]
    """Likeliest alternatives, raw."""


@dataclass(frozen=True, slots=True)
class Delta:
    """What a step adds to what is shown."""

    text: str
    """Released text; may be empty while tokens are not."""
    tokens: tuple[Token, ...]
    """Tokens whose text is now shown."""


@dataclass(frozen=True, slots=True)
class Ended:
    """An output, whole and cut."""

    completion: Completion
    """As the engine gave it, cut where the text was cut."""
    text: str
    """What was shown."""
    ending: Ending
    """Why it ended; a stop string counts as ``stop``."""
    stopped_by: str | int | None
    """The stop string or token."""


class Output:
    """Runs one request. Iterate :meth:`deltas`, then read ``ended``; close the iterator to cancel."""

    def __init__(self, engine: Engine, request: Request, cutter: Cutter, clock: Clock) -> None:
        self._engine, self._request, self._cutter, self._clock = engine, request, cutter, clock
        self._inbox: asyncio.Queue[Emitted | None] = asyncio.Queue()
        self._tokens: list[Token] = []
        self._text: list[str] = []
        self._given = 0
        self._enough = False
        self.ended: Ended | None = None
        """Set when the iterator is exhausted."""

    def end_here(self) -> None:
        """The reader has what it wanted: the output ends with what is shown."""
        self._enough = True

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        """What is shown, as it comes. Raises ``Rejected`` or ``Conflict`` at once, ``Unavailable`` if the engine stops."""
        name = self._request.request_id
        future = self._engine.submit(self._request, self._inbox.put_nowait)
        future.add_done_callback(lambda _: self._inbox.put_nowait(None))
        try:
            while (emitted := await self._next()) is not None:
                delta = self._take(emitted)
                if delta is not None:
                    yield delta
                if self._enough or self._cutter.matched is not None:
                    self._engine.cancel(name)
                    break
            async with asyncio.timeout(_GRACE_S):
                completion = await future
        except TimeoutError:
            raise Unavailable(f"request {name}: the engine did not answer in time") from None
        finally:
            if not future.done():
                self._engine.cancel(name)
                future.add_done_callback(_retrieve)
        if not self._enough and self._cutter.matched is None:
            last = self._delta(self._cutter.finish())
            if last is not None:
                yield last
        self.ended = self._end(completion)

    async def _next(self) -> Emitted | None:
        deadline = self._request.deadline
        left = None if deadline is None else max(0.0, deadline - self._clock.monotonic()) + _GRACE_S
        async with asyncio.timeout(left):  # not wait_for: before Python 3.12 it may lose a cancellation
            return await self._inbox.get()

    def _take(self, emitted: Emitted) -> Delta | None:
        tops: Sequence[tuple[tuple[int, float], ...]] = emitted.top_logprobs or ((),) * len(emitted.tokens)
        shown = ""
        for token, raw, top in zip(emitted.tokens, emitted.logprobs_raw, tops, strict=True):
            self._tokens.append(Token(token, raw, top))
            shown += self._cutter.feed(token)
            if self._cutter.matched is not None:
                break
        return self._delta(shown)

    def _delta(self, shown: str) -> Delta | None:
        fresh = tuple(self._tokens[self._given : self._cutter.kept])
        self._given = self._cutter.kept
        if not shown and not fresh:
            return None
        self._text.append(shown)
        return Delta(shown, fresh)

    def _end(self, completion: Completion) -> Ended:
        matched = self._cutter.matched
        whole = cut(completion, self._cutter.kept)
        text = "".join(self._text)
        if self._enough or matched is not None:
            return Ended(replace(whole, finish=FinishReason.STOP, stopped_by=None), text, "stop", matched)
        return Ended(whole, text, completion.finish.value, completion.stopped_by)


def cut(completion: Completion, kept: int) -> Completion:
    """The first ``kept`` output tokens of a completion, every array and span alike."""
    if kept >= len(completion.tokens):
        return completion
    return replace(
        completion,
        tokens=completion.tokens[:kept],
        logprobs_raw=completion.logprobs_raw[:kept],
        logprobs=completion.logprobs[:kept],
        log_surviving_mass=completion.log_surviving_mass[:kept],
        top_logprobs=completion.top_logprobs[:kept],
        weight_versions=_cut_spans(completion.weight_versions, kept),
        kv_origin_versions=_cut_spans(completion.kv_origin_versions, kept),
        drafts_accepted=min(completion.drafts_accepted, kept),
    )


def _cut_spans(spans: Sequence[Span], kept: int) -> tuple[Span, ...]:
    return tuple(Span(span.start, min(span.end, kept), span.version) for span in spans if span.start < kept)


def _retrieve(future: asyncio.Future[Completion]) -> None:
    """A cancelled request's failure interests nobody; asking for it keeps the loop from reporting it."""
    if not future.cancelled():
        future.exception()
