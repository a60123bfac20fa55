"""How many episodes play at once, and which one is next.

The number follows the KV memory of the engines. Of the pool's blocks, those that running or kept sequences hold cannot be given to
anybody else:

    held share   < GROW_BELOW             grow    one permit more with every episode that ends
                 .. CUT_ABOVE             hold
                 > CUT_ABOVE, or a sequence was put back for want of memory since the last look
                                          cut     a quarter of what plays, until the next look

An engine that does not tell of its pool sets no limit. The next permit goes to the group that was published first, so that a
redelivered group and the last episodes of an old one do not wait behind newer ones.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from enum import StrEnum

from temper.rollout.engine.base import Stats

GROW_BELOW, CUT_ABOVE, CUT_TO = 0.75, 0.92, 0.75


class Pressure(StrEnum):
    """What the KV memory of a worker allows."""

    GROW = "grow"
    HOLD = "hold"
    CUT = "cut"


class Gauge:
    """Reads the pressure off the engines' counters. Pure but for remembering the last look."""

    def __init__(self) -> None:
        self._preempted = 0

    def look(self, engines: Sequence[Stats]) -> Pressure:
        """The pressure now: the worst of all engines."""
        preempted = sum(stats.preemptions for stats in engines)
        put_back, self._preempted = preempted > self._preempted, preempted
        pools = [stats.blocks for stats in engines if stats.blocks is not None and stats.blocks.total]
        share = max((pool.held / pool.total for pool in pools), default=0.0)
        if put_back or share > CUT_ABOVE:
            return Pressure.CUT
        return Pressure.GROW if share < GROW_BELOW else Pressure.HOLD


class Permits:
    """Permits for episodes: at most ``most``, at least one. ``stats`` gives the counters of all engines."""

    def __init__(self, most: int, stats: Callable[[], Sequence[Stats]] = lambda: ()) -> None:
        self.most, self.limit, self.in_use = most, most, 0
        self.pressure = Pressure.GROW
        self._stats, self._gauge = stats, Gauge()
        self._queue: list[tuple[int, int, asyncio.Future[None]]] = []
        self._number = 0

    @asynccontextmanager
    async def one(self, since: int) -> AsyncIterator[None]:
        """Wait for a permit and hold it. The smallest ``since`` is served first, then the order of asking."""
        await self._take(since)
        try:
            yield
        finally:
            self.in_use -= 1
            self.adjust()

    @property
    def waiting(self) -> int:
        """Episodes that wait for a permit."""
        return sum(not ticket.done() for *_, ticket in self._queue)

    def adjust(self) -> None:
        """Look at the engines, move the limit, and give out what is free. Called at every end of an episode."""
        self.pressure = self._gauge.look(self._stats())
        match self.pressure:
            case Pressure.GROW:
                self.limit = min(self.most, self.limit + 1)
            case Pressure.CUT:
                self.limit = max(1, min(self.limit, int(CUT_TO * self.in_use)))
            case Pressure.HOLD:
                pass
        self._give()

    async def _take(self, since: int) -> None:
        ticket: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._number += 1
        heapq.heappush(self._queue, (since, self._number, ticket))
        self._give()
        try:
            await ticket
        except asyncio.CancelledError:
            if ticket.done() and not ticket.cancelled():  # given just as its owner went away
                self.in_use -= 1
                self._give()
            raise

    def _give(self) -> None:
        while self._queue and self.in_use < self.limit:
            *_, ticket = heapq.heappop(self._queue)
            if not ticket.done():
                self.in_use += 1
                ticket.set_result(None)
