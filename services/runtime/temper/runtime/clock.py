"""Time as a dependency: the real clock, and one that tests turn by hand."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

_SETTLE_ROUNDS = 50  # loop turns given to woken tasks between two instants: enough for chains of awaits


class Clock(Protocol):
    """Everything a part may know about time. Seconds everywhere."""

    def now(self) -> float:
        """Seconds since the Unix epoch; may jump; only for stamps and deadlines that cross processes."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary origin; never goes back; for durations."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`; at once (after one turn of the loop) if not positive."""
        ...

    def timeout(self, seconds: float | None) -> AbstractAsyncContextManager[object]:
        """Cancel the body after `seconds` and raise `TimeoutError` in its place; None waits for ever."""
        ...


class SystemClock:
    """The machine's clock and the event loop's timers."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(seconds, 0.0))

    def timeout(self, seconds: float | None) -> AbstractAsyncContextManager[object]:
        return asyncio.timeout(seconds)


class FakeClock:
    """A clock that moves only when a test calls `advance`.

    Sleepers wake in order of their due time, and everything they set off runs before the next one wakes, so a
    scenario on this clock has one history however slow the machine is.
    """

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._epoch = start
        self._elapsed = 0.0
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> float:
        return self._epoch + self._elapsed

    def monotonic(self) -> float:
        return self._elapsed

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        await self._alarm(seconds)

    @asynccontextmanager
    async def timeout(self, seconds: float | None) -> AsyncIterator[None]:
        if seconds is None:
            yield
            return
        alarm = self._alarm(max(seconds, 0.0))
        inside = True
        async with asyncio.timeout(None) as scope:

            def fire(done: asyncio.Future[None]) -> None:
                if inside and not done.cancelled():
                    scope.reschedule(float("-inf"))  # the loop's own time is past it: fires at once

            alarm.add_done_callback(fire)
            try:
                yield
            finally:
                inside = False
                alarm.cancel()

    async def advance(self, seconds: float) -> None:
        """Let `seconds` pass, waking every sleeper that falls due on the way."""
        end = self._elapsed + seconds
        await self.settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            due, _, alarm = heapq.heappop(self._sleepers)
            self._elapsed = max(self._elapsed, due)
            if not alarm.done():
                alarm.set_result(None)
                await self.settle()
        self._elapsed = end
        await self.settle()

    async def settle(self) -> None:
        """Let every task that can run do so, without time passing."""
        for _ in range(_SETTLE_ROUNDS):
            await asyncio.sleep(0)

    def _alarm(self, seconds: float) -> asyncio.Future[None]:
        alarm: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._elapsed + seconds, next(self._order), alarm))
        return alarm
