"""Who may run: a bounded number at once, the most urgent first, and nobody while the gate is shut."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable

_AHEAD = 64  # earlier arrivals that one level of priority overtakes; so waiting ages by itself


class Gate:
    """Places for running requests. Lives in one event loop."""

    def __init__(self, places: int, monotonic: Callable[[], float]) -> None:
        self._places, self._monotonic = places, monotonic
        self._busy, self._since = 0.0, 0.0
        self._shut = True
        self._arrivals = itertools.count()
        self._queue: list[tuple[int, int, asyncio.Future[None]]] = []
        self._idle = asyncio.Event()
        self._idle.set()
        self.inside = 0

    @property
    def busy_seconds(self) -> float:
        """Time with somebody inside."""
        return self._busy + (self._monotonic() - self._since if self.inside else 0.0)

    async def enter(self, priority: int) -> None:
        """Wait for a place, and take it."""
        arrival = next(self._arrivals)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._queue, (arrival - _AHEAD * priority, arrival, turn))
        self._let_in()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave()  # let in and cancelled in the same turn of the loop
            raise

    def leave(self) -> None:
        """Give the place back."""
        self.inside -= 1
        if not self.inside:
            self._busy += self._monotonic() - self._since
            self._idle.set()
        self._let_in()

    def shut(self) -> None:
        """Let nobody in."""
        self._shut = True

    def open(self) -> None:
        """Let them in."""
        self._shut = False
        self._let_in()

    async def empty(self) -> None:
        """Wait until nobody is inside."""
        await self._idle.wait()

    def _let_in(self) -> None:
        while not self._shut and self.inside < self._places and self._queue:
            turn = heapq.heappop(self._queue)[2]
            if turn.done():  # whoever waited has gone
                continue
            if not self.inside:
                self._since = self._monotonic()
                self._idle.clear()
            self.inside += 1
            turn.set_result(None)
