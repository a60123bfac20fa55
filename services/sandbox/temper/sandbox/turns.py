"""Waiting for a place, first come first served: what becomes free wakes one of those who wait, not all of them."""

import asyncio
from collections import deque

from temper.runtime.clock import Clock


class Turns:
    """The queue for one kind of place. Whoever is woken tries; who was overtaken waits again, at the front."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait(self, until: float, *, again: bool = False) -> bool:
        """Wait for a turn; False when the time (monotonic seconds) is up."""
        left = until - self._clock.monotonic()
        if left <= 0:
            return False
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        (self._waiting.appendleft if again else self._waiting.append)(turn)
        try:
            async with self._clock.timeout(left):
                await turn
        except TimeoutError:
            return self._leave(turn)
        except asyncio.CancelledError:
            if self._leave(turn):  # woken, and then called off: the turn is another's
                self.free()
            raise
        return True

    def _leave(self, turn: "asyncio.Future[None]") -> bool:
        """Out of the queue; whether it had been woken."""
        if turn in self._waiting:
            self._waiting.remove(turn)
            return False
        return True

    def free(self) -> None:
        """One place is free: wake who has waited longest."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def all(self) -> None:
        """Wake everybody: there is nothing to wait for any more."""
        for turn in self._waiting:
            if not turn.done():
                turn.set_result(None)
        self._waiting.clear()
