"""Simulated time for code that also uses threads: the clock moves only when nobody can do anything at this instant.

Real work (hashing, files) happens on threads and takes no simulated time. What is simulated sleeps on the clock. So a run
has one history and one duration, however slow or busy the machine is.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Any

from temper.runtime.clock import FakeClock

_LOOK_S = 0.0002  # real seconds between two looks at threads that are busy


class Loop(asyncio.SelectorEventLoop):
    """An event loop that counts what its threads have begun and are still at."""

    def __init__(self) -> None:
        super().__init__()
        self.busy = 0
        self.begun = 0

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        future = super().run_in_executor(executor, func, *args)
        self.busy += 1
        self.begun += 1
        future.add_done_callback(self._one_less)
        return future

    def _one_less(self, _: object) -> None:
        self.busy -= 1


class Pace(FakeClock):
    """A fake clock that finds the next instant by itself."""

    def __init__(self, loop: Loop) -> None:
        super().__init__()
        self._loop = loop

    async def run_until(self, reached: Callable[[], bool]) -> None:
        """Let time pass until `reached`."""
        while not reached():
            await self._quiet()
            due, _, alarm = heapq.heappop(self._sleepers)
            self._elapsed = max(self._elapsed, due)
            if not alarm.done():
                alarm.set_result(None)

    def sleep_on_thread(self, seconds: float) -> None:
        """For a worker thread of the loop: return after `seconds` of this clock."""
        asyncio.run_coroutine_threadsafe(self._nap(seconds), self._loop).result()

    async def _nap(self, seconds: float) -> None:
        self._loop.busy -= 1  # its thread waits for us, not we for it
        try:
            await self.sleep(seconds)
        finally:
            self._loop.busy += 1
            self._loop.begun += 1

    async def _quiet(self) -> None:
        """Wait until every task waits for something and no thread works."""
        while True:
            begun, busy = self._loop.begun, self._loop.busy
            await self.settle()
            if not busy and begun == self._loop.begun:  # no thread had anything to say all the while
                return
            if busy:
                await asyncio.sleep(_LOOK_S)
