"""Simulated time: the clock moves only when nobody can do anything at this instant, and what is simulated sleeps on it.

Real work (hashing, files) takes no simulated time. What a program gives to threads is done at once on the loop instead: threads end
in an order that the machine chooses, and with it groups would be taken in another order. So a run has one history and one
duration, however slow or busy the machine is.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from concurrent.futures import Executor
from contextvars import Context
from typing import Any

from temper.runtime.clock import FakeClock


class Loop(asyncio.SelectorEventLoop):
    """An event loop without threads, on a clock of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduled = 0
        self.pace = Pace(self)
        self._turns: dict[Executor, asyncio.Lock] = {}

    def call_soon(
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        self.scheduled += 1
        return super().call_soon(callback, *args, context=context)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        return self.create_task(self._at_once(executor, func, args))

    async def _at_once(
        self, executor: Executor | None, func: Callable[..., Any], args: tuple[Any, ...]
    ) -> Any:
        """On an executor one call after the other, as on the one thread of a device: a result is there when its time is over."""
        if executor is None:
            return func(*args)
        async with self._turns.setdefault(executor, asyncio.Lock()):
            result = func(*args)
            await self.pace.sleep(self.pace.bill())
            return result


class Pace(FakeClock):
    """A fake clock that finds the next instant by itself."""

    def __init__(self, loop: Loop) -> None:
        super().__init__()
        self._loop = loop
        self._charged = 0.0

    async def run_until(self, reached: Callable[[], bool]) -> None:
        """Let time pass until `reached`."""
        while not reached():
            await self._quiet()
            due, _, alarm = heapq.heappop(self._sleepers)
            if not alarm.done():
                self._elapsed = max(self._elapsed, due)
                alarm.set_result(None)

    def charge(self, seconds: float) -> None:
        """For a call on an executor: it takes `seconds` of this clock."""
        self._charged += seconds

    def bill(self) -> float:
        """What was charged since the last bill."""
        charged, self._charged = self._charged, 0.0
        return charged

    async def _quiet(self) -> None:
        """Wait until every task waits for something: a turn of the loop in which only we come again."""
        turn = 1
        while turn:
            before = self._loop.scheduled
            await asyncio.sleep(0)
            turn = self._loop.scheduled - before - 1
