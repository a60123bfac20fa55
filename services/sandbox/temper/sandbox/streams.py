"""Output on its way to a reader who asks for it piece by piece: bounded, in order, nothing lost and nothing sent twice.

    program -> sink -> OutputWindow <- read(offset) <- caller

A reader's offset says what has arrived and may be let go of. When the window is full the sink waits, so a reader who does not
come holds the program back; the host's memory stays flat either way.
"""

import asyncio
from collections import deque
from typing import Final

from temper.runtime.clock import Clock
from temper.runtime.errors import Stale
from temper.sandbox.engine.base import Stream
from temper.sandbox.news import News

WINDOW: Final = 1 << 20
"""Bytes that wait for a reader."""
REPLY: Final = 512 << 10
"""Bytes of one answer; a message of the bus holds more."""

Chunk = tuple[Stream, bytes]


class OutputWindow:
    """The output of one program or command that has not been read yet."""

    def __init__(self, clock: Clock, size: int = WINDOW) -> None:
        self._size = size
        self._chunks: deque[Chunk] = deque()
        self._first = 0
        self._held = 0
        self._news = News(clock)
        self._room = asyncio.Event()
        self.ended = False
        """Whether nothing more will come in."""

    async def sink(self, stream: Stream, data: bytes) -> None:
        """Take a chunk once there is room; one larger than the window fits an empty one."""
        while self._held >= self._size and not self.ended:
            self._room.clear()
            await self._room.wait()
        if not self.ended:
            self._chunks.append((stream, data))
            self._held += len(data)
            self._news.tell()

    def end(self) -> None:
        """Nothing more will come; what is there can still be read."""
        self.ended = True
        self._news.tell()
        self._room.set()

    def hurry(self) -> None:
        """Have nobody wait for more: a host that stops answers at once."""
        self._news.hurry()

    async def read(self, offset: int, wait_s: float) -> tuple[list[Chunk], int, bool]:
        """Let go of what lies before `offset`; what follows it, the next offset, and whether that was all.

        Waits up to `wait_s` for something to come. Raises Stale for an offset that was let go of or never reached.
        """
        self._release(offset)
        await self._news.until(lambda: bool(self._chunks) or self.ended, wait_s)
        taken: list[Chunk] = []
        size = 0
        for stream, data in self._chunks:
            piece = data[: REPLY - size]
            taken.append((stream, piece))
            size += len(piece)
            if size >= REPLY:
                break
        return taken, offset + size, self.ended and size == self._held

    def _release(self, offset: int) -> None:
        if not self._first <= offset <= self._first + self._held:
            raise Stale(
                f"offset {offset} is not between {self._first} and {self._first + self._held}",
                field="offset",
                hint="ask with the offset of the last answer",
            )
        drop = offset - self._first
        self._first, self._held = offset, self._held - drop
        while drop:
            stream, data = self._chunks.popleft()
            if len(data) > drop:
                self._chunks.appendleft((stream, data[drop:]))
                break
            drop -= len(data)
        self._room.set()
