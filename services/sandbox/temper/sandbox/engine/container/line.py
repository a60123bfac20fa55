"""A conversation with a program of ours in a container, over its standard streams: messages out in order, messages in as they come.

What comes is untrusted: anything but a well-formed message that its listener knows ends the conversation.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from temper.sandbox.engine.command import Stream
from temper.sandbox.engine.container.seam import Program
from temper.sandbox.engine.guest import wire

_MOST_MESSAGE: Final = 256 << 10
_COMPLAINT: Final = 400
_LAST_WORDS_S: Final = 2.0


class Line:
    """See the module. `first` is sent before any message."""

    def __init__(self, program: Program, first: bytes) -> None:
        self._program = program
        self._outgoing: asyncio.Queue[bytes] = asyncio.Queue()
        self._outgoing.put_nowait(first)
        self._hear: Callable[[wire.Message], None] = lambda _: None
        self._decoder = wire.Decoder(_MOST_MESSAGE)
        self.complaint = ""
        """The end of what it said on its standard error."""
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once nothing more comes."""
        self._closing: asyncio.Task[None] | None = None
        self._tasks = [asyncio.create_task(self._write()), asyncio.create_task(self._read())]

    def listen(self, hear: Callable[[wire.Message], None]) -> None:
        """Who takes the messages; it raises ValueError, KeyError or TypeError for one that it does not know."""
        self._hear = hear

    def send(self, message: wire.Message) -> None:
        """Say something; silently nothing once the line is lost."""
        if not self.lost.done():
            self._outgoing.put_nowait(wire.encode(message))

    async def _write(self) -> None:
        while True:
            data = await self._outgoing.get()
            await self._program.write(data)
            self._outgoing.task_done()

    async def _read(self) -> None:
        try:
            while (got := await self._program.read()) is not None:
                stream, data = got
                if stream is Stream.STDERR:
                    self.complaint = (self.complaint + data.decode(errors="replace"))[-_COMPLAINT:]
                    continue
                for message in self._decoder.feed(data):
                    self._hear(message)
        except (ValueError, KeyError, TypeError, AttributeError):
            self.complaint = "it spoke nonsense"
        finally:
            self._lose()

    def close(self) -> None:
        """Hang up, which ends the program. Idempotent."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())

    async def _close(self) -> None:
        """What was said last still goes out, unless nobody takes it; then the end of the program's input."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S if not self.lost.done() else 0):
                await self._outgoing.join()
                await self._program.finish_input()
                await asyncio.wait({self.lost})
        self._lose()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._program.close()

    async def closed(self) -> None:
        """Hang up, and wait until the streams are let go of."""
        self.close()
        assert self._closing is not None
        await self._closing

    def _lose(self) -> None:
        if not self.lost.done():
            self.lost.set_result(None)
