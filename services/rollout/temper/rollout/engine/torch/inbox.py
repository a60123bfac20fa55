"""What passes between the event loop and the step thread: closures to run, and futures that wait for them."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from temper.runtime.errors import Unavailable

T = TypeVar("T")


class Inbox:
    """Closures run on the thread between two steps, in order. Nobody waits for a thread that has died."""

    def __init__(self, edge_s: float) -> None:
        self._edge_s = edge_s  # longer than any step may take
        self.loop: asyncio.AbstractEventLoop | None = None
        """Where futures live; None before the start."""
        self.closing = False
        """Whether the thread shall end."""
        self._posted: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._waiting: set[asyncio.Future[Any]] = set()
        self._dead = ""  # why nothing comes from the thread any more

    def post(self, work: Callable[[], None]) -> None:
        """Have the thread run something."""
        with self._wake:
            self._posted.append(work)
            self._wake.notify()

    def close(self) -> None:
        """Have the thread end."""
        self.closing = True
        with self._wake:
            self._wake.notify()

    def run(self) -> None:
        """On the thread: do what was posted."""
        with self._wake:
            posted, self._posted = self._posted, deque()
        for work in posted:
            work()

    def sleep(self, seconds: float | None) -> None:
        """On the thread: wait for something to do."""
        with self._wake:
            self._wake.wait_for(lambda: self._posted or self.closing, timeout=seconds)

    def tell(self, work: Callable[[], object]) -> None:
        """On the thread: have the event loop run something, unless nobody listens any more."""
        if self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(lambda: None if self._dead else work())

    def fail(self, why: str) -> None:
        """On the event loop: nothing comes from the thread any more. Whoever waits learns it at once. Idempotent."""
        self._dead = self._dead or why
        for future in self._waiting:
            if not future.done():
                future.set_exception(Unavailable(self._dead))

    async def at_edge(self, work: Callable[[], T], otherwise: str) -> T:
        """Run something on the thread, and wait for its result."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def run() -> None:
            result = work()
            self.tell(lambda: settle(done, result))

        self.post(run)
        late = f"no step edge within {self._edge_s:g} s, {otherwise}"
        return await self.wait_for(done, self._edge_s, late)

    async def wait_for(self, done: asyncio.Future[T], seconds: float, otherwise: str) -> T:
        """Wait for the thread; its death ends the wait at once."""
        if self.loop is None or self._dead:
            raise Unavailable(self._dead or "engine: it is not started")
        self._waiting.add(done)
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(done)
        except TimeoutError:
            raise Unavailable(f"engine: {otherwise}") from None
        finally:
            self._waiting.discard(done)


def settle(future: asyncio.Future[T], result: T) -> None:
    """Resolve a future that may have been given up."""
    if not future.done():
        future.set_result(result)
