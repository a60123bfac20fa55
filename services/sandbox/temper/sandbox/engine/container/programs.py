"""Running one program in a container: its output under caps, its end, and small scripts of our own.

Our scripts are constant texts for `/bin/sh`; what comes from a caller is a positional argument of theirs and never text.
"""

import asyncio
import contextlib
import secrets
from dataclasses import replace
from typing import Final

from temper.runtime.errors import Unavailable
from temper.sandbox.engine.command import Command, CommandResult, Limits, Sink, Stream
from temper.sandbox.engine.container.seam import Container, Program
from temper.sandbox.engine.output import CappedBuffer

_LINGER_S: Final = 0.25
"""What a program has said may arrive this long after its end; children it left may hold its streams for ever."""
_SCRIPT_S: Final = 30.0
_DELIVER_S: Final = 30.0
_FLOOD_BYTES: Final = 64 << 20
_FLOOD_CAPS: Final = 16

# $1 a mark that nobody else knows, $2 the directory, the rest the program. Failing before the program begins, it says so
# with the mark; the program itself takes its place and never sees it.
_ENTER: Final = """
mark=$1; cd -- "$2" 2>/dev/null || { printf '%s:No such file or directory' "$mark" >&2; exit 127; }; shift 2
command -v -- "$1" >/dev/null 2>&1 || {
  if [ -d "$1" ] || [ -e "$1" ]; then printf '%s:Permission denied' "$mark" >&2
  else printf '%s:No such file or directory' "$mark" >&2; fi
  exit 127
}
[ -d "$1" ] && { printf '%s:Permission denied' "$mark" >&2; exit 127; }
exec "$@"
"""


class Run:
    """One command of a container, from its start to its end."""

    def __init__(self, container: Container, command: Command, limits: Limits, sink: Sink | None) -> None:
        self._container = container
        self._command = command
        self._limits = limits
        self._sink = sink
        self._mark = secrets.token_hex(16)
        self._buffers = {stream: CappedBuffer(limits.output_bytes) for stream in Stream}
        self._tasks: list[asyncio.Task[None]] = []
        self.flooded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the output seems never to end."""

    async def start(self) -> Program:
        """Begin. Raises Unavailable."""
        directory = self._command.cwd or "."
        argv = ["/bin/sh", "-c", _ENTER, "enter", self._mark, directory, *self._command.argv]
        environment = {**self._container.environment, **self._command.env}
        stdin = bool(self._command.stdin)
        self._program = await self._container.start(argv, environment, stdin=stdin)
        pump = asyncio.create_task(self._pump(self._sink))
        pump.add_done_callback(self._read_on)
        self._tasks.append(pump)
        if stdin:
            self._tasks.append(asyncio.create_task(self._feed()))
        return self._program

    def _read_on(self, pump: "asyncio.Task[None]") -> None:
        """A sink that failed gets nothing more; the program goes on, and `finish` says why."""
        if not pump.cancelled() and pump.exception() is not None:
            self._tasks.append(asyncio.create_task(self._pump(None)))

    async def _pump(self, sink: Sink | None) -> None:
        flood = max(self._limits.output_bytes * _FLOOD_CAPS, _FLOOD_BYTES)
        while (got := await self._program.read()) is not None:
            stream, data = got
            self._buffers[stream].write(data)
            if sink is not None:
                await sink(stream, data)
            elif self._buffers[stream].total > flood and not self.flooded.done():
                self.flooded.set_result(None)

    async def _feed(self) -> None:
        await self._program.write(self._command.stdin)
        await self._program.finish_input()

    async def finish(self) -> None:
        """Take what is still on its way, then let go of the streams. Raises what a sink raised."""
        pump = self._tasks[0]
        await asyncio.wait({pump}, timeout=_DELIVER_S if self._sink is not None else _LINGER_S)
        for task in self._tasks:
            task.cancel()
        await self._program.close()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    @property
    def truncated(self) -> bool:
        """Whether bytes were cut out of the middle."""
        return any(buffer.truncated for buffer in self._buffers.values())

    def complete(self, result: CommandResult) -> CommandResult:
        """The result with output and status."""
        out, err = (self._buffers[stream].value() for stream in Stream)
        status = self._program.ended.result() if self._program.ended.done() else None
        mark = f"{self._mark}:".encode()
        if status == 127 and err.startswith(mark):
            return replace(result, error=err.removeprefix(mark).decode())
        result = replace(result, stdout=out, stderr=err)
        if status is None:
            return result
        # The runtimes say 128 + n for signal n, so an exit with such a number looks like a signal.
        return (
            replace(result, signal=status - 128) if 128 < status <= 192 else replace(result, exit_code=status)
        )


async def script(
    container: Container, text: str, *words: str, stdin: bytes = b""
) -> tuple[int, bytes, bytes]:
    """Run a constant shell script with arguments; returns its status and both outputs. Raises Unavailable."""
    argv = ["/bin/sh", "-c", text, "script", *words]
    program = await container.start(argv, container.environment, stdin=bool(stdin))
    said = {stream: bytearray() for stream in Stream}

    async def feed() -> None:
        await program.write(stdin)
        await program.finish_input()

    feeding = asyncio.create_task(feed()) if stdin else None
    try:
        async with asyncio.timeout(_SCRIPT_S):
            while (got := await program.read()) is not None:
                said[got[0]] += got[1]
            status = await program.ended
    except TimeoutError:
        raise Unavailable(f"the container did not answer within {_SCRIPT_S:.0f} s") from None
    finally:
        if feeding is not None:
            feeding.cancel()
        await program.close()
    if status is None:
        raise Unavailable("the container is gone")
    return status, bytes(said[Stream.STDOUT]), bytes(said[Stream.STDERR])
