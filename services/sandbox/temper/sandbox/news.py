"""Waiting for something to come, within bounds, unless the host is about to stop."""

import asyncio
import contextlib
from collections.abc import Callable

from temper.runtime.clock import Clock


class News:
    """What a reader waits for. `tell` after every change of what it looks at."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told = asyncio.Event()
        self._hurried = False

    def tell(self) -> None:
        """Have those that wait look again."""
        self._told.set()

    def hurry(self) -> None:
        """Have nobody wait any more: a host that stops answers at once."""
        self._hurried = True
        self._told.set()

    async def until(self, there: Callable[[], bool], wait_s: float) -> None:
        """Wait up to `wait_s` seconds for it to be there."""
        if wait_s <= 0:
            return
        with contextlib.suppress(TimeoutError):
            async with self._clock.timeout(wait_s):
                while not there() and not self._hurried:
                    self._told.clear()
                    await self._told.wait()
