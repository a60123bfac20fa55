"""What passes between the event loop and the step thread: closures to run, and futures that wait for them."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from temper.runtime.errors import Unavailable

T = TypeVar("T")

_EDGE_S = 60.0  # far longer than any step; passes only when the step thread hangs


class Inbox:
    """Closures run on the thread between two steps, in order. Nobody waits for a thread that has died."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        """Where futures live; None before the start."""
        self.closing = False
        """Whether the thread shall end."""
        self._posted: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._waiting: set[asyncio.Future[Any]] = set()
        self._dead = False

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
        """On the thread: have the event loop run something."""
        if self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(work)

    def fail(self) -> None:
        """On the thread, as its last act: whoever waits learns it at once."""

        def end() -> None:
            self._dead = True
            for future in self._waiting:
                if not future.done():
                    future.set_exception(Unavailable("engine: stopped before the next step edge"))

        self.tell(end)

    async def at_edge(self, work: Callable[[], T], otherwise: str) -> T:
        """Run something on the thread, and wait for its result."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def run() -> None:
            result = work()
            self.tell(lambda: settle(done, result))

        self.post(run)
        return await self.wait_for(done, _EDGE_S, f"no step edge within {_EDGE_S:g} s, {otherwise}")

    async def wait_for(self, done: asyncio.Future[T], seconds: float, otherwise: str) -> T:
        """Wait for the thread; its death ends the wait at once."""
        if self.loop is None or self._dead:
            raise Unavailable("engine: it is not started, or has stopped")
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
