"""Watches of files that a caller reads piece by piece: bounded, in order, and a loss says itself.

    sandbox.watch -> ChangeWindow <- read(offset) <- caller

Nothing holds a program back here: when nobody reads, what happens after the window is full becomes one `lost`.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from temper.runtime.clock import Clock
from temper.runtime.errors import Exhausted, Stale
from temper.sandbox.engine.base import Change, Sandbox
from temper.sandbox.engine.entries import ChangeKind
from temper.sandbox.news import News

WINDOW: Final = 4096
"""Changes that wait for a reader."""
REPLY: Final = 1024
"""Changes of one answer."""
_MOST_WATCHES: Final = 16


class ChangeWindow:
    """The changes of one watch that have not been received yet. `top` is the watched directory, as asked for."""

    def __init__(self, clock: Clock, top: str, size: int = WINDOW) -> None:
        self._top = top
        self._size = size
        self._changes: deque[Change] = deque()
        self._first = 0
        self._news = News(clock)
        self.ended = False
        """Whether nothing more will come in."""

    def put(self, change: Change) -> None:
        """Take a change, or note once that some were lost."""
        if self.ended or len(self._changes) > self._size:
            return
        full = len(self._changes) == self._size
        self._changes.append(Change(ChangeKind.LOST, self._top) if full else change)
        self._news.tell()

    def end(self) -> None:
        """Nothing more will come; what is there can still be read."""
        self.ended = True
        self._news.tell()

    def hurry(self) -> None:
        """Have nobody wait for more: a host that stops answers at once."""
        self._news.hurry()

    async def read(self, offset: int, wait_s: float) -> tuple[list[Change], int, bool]:
        """Let go of what lies before `offset`; what follows it, the next offset, and whether that was all.

        Waits up to `wait_s` for something to happen. Raises Stale for an offset that was let go of or never reached.
        """
        held = self._first + len(self._changes)
        if not self._first <= offset <= held:
            raise Stale(
                f"offset {offset} is not between {self._first} and {held}",
                field="offset",
                hint="ask with the offset of the last answer, or watch anew",
            )
        while self._first < offset:
            self._changes.popleft()
            self._first += 1
        await self._news.until(lambda: bool(self._changes) or self.ended, wait_s)
        taken = list(self._changes)[:REPLY]
        return taken, offset + len(taken), self.ended and len(taken) == len(self._changes)


@dataclass(frozen=True, slots=True)
class _Watch:
    window: ChangeWindow
    pump: "asyncio.Task[None]"


class Watches:
    """The watches of one session, by the caller's names."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open: dict[str, _Watch] = {}

    async def begin(self, sandbox: Sandbox, name: str, path: str) -> ChangeWindow:
        """The window of this name; listening when this returns. Raises Rejected, Exhausted, Unavailable."""
        if name in self._open:
            return self._open[name].window
        if len(self._open) >= _MOST_WATCHES:
            done = next((key for key, each in self._open.items() if each.window.ended), None)
            if done is None:
                raise Exhausted(f"{_MOST_WATCHES} watches are open", hint="close one")
            await self.close(done)
        window = ChangeWindow(self._clock, path or "/work")
        changes = sandbox.watch(path)
        pump = asyncio.create_task(_pump(changes, window))
        pump.add_done_callback(_heard)
        self._open[name] = _Watch(window, pump)
        await asyncio.sleep(0)  # by its contract an iterator of changes listens before it first waits
        if pump.done() and pump.exception() is not None:
            del self._open[name]
            pump.result()
        return window

    async def close(self, name: str) -> None:
        """End one; one that is not there is fine."""
        watch = self._open.pop(name, None)
        if watch is not None:
            watch.window.end()
            await _stop(watch.pump)

    def hurry(self) -> None:
        """Have no reader wait for more."""
        for watch in self._open.values():
            watch.window.hurry()

    def clear(self) -> None:
        """The sandbox began anew or ended: nothing more happens where they looked."""
        for watch in self._open.values():
            watch.window.end()
            watch.pump.cancel()


async def _pump(changes: AsyncIterator[Change], window: ChangeWindow) -> None:
    try:
        async for change in changes:
            window.put(change)
    finally:
        window.end()


def _heard(task: "asyncio.Task[None]") -> None:
    """A watch that breaks has ended, which its reader is told; nobody else waits for why."""
    if not task.cancelled():
        task.exception()


async def _stop(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.wait({task})
