"""A shell that takes scripts on one pipe and tells the exit status of each on another.

The driver below runs in the sandbox and is the agent's: what comes back is believed about this session and nothing else.
"""

import asyncio
import os
from typing import Any, Final

from temper.runtime.errors import Unavailable

_MOST_STATUS: Final = 4096
# How many lines, then the lines; the status comes back on 4. Both descriptors are closed for what the script starts.
_DRIVER: Final = r"""
while IFS= read -r _lines <&3; do
  _script=
  while [ "$_lines" -gt 0 ]; do
    IFS= read -r _line <&3 || exit
    _script=$_script$_line'
'
    _lines=$((_lines-1))
  done
  eval "$_script" 3<&- 4>&-
  printf '%s\n' "$?" >&4
done
"""
COMMAND: Final = (
    "/bin/sh",
    "-c",
    'if command -v bash >/dev/null 2>&1; then exec bash --noprofile --norc -c "$1" bash; else eval "$1"; fi',
    "sh",
    _DRIVER,
)
"""Program and arguments: bash where there is one, else any POSIX shell. Descriptors 3 and 4 are the two pipes."""


def framed(script: str) -> bytes:
    """A script as the driver reads it: the number of its lines, then the lines. It passes through no quoting."""
    lines = script.split("\n")
    return "\n".join([str(len(lines)), *lines, ""]).encode()


class Shell:
    """The host's ends of the two pipes. `theirs` are the shell's, which the caller hands over and closes."""

    def __init__(self) -> None:
        scripts, self.scripts = os.pipe2(os.O_CLOEXEC)
        self._statuses, statuses = os.pipe2(os.O_CLOEXEC)
        self.theirs = [scripts, statuses]
        self._loop = asyncio.get_running_loop()
        self._status: asyncio.Future[int] = self._loop.create_future()
        self._pending = b""
        for descriptor in (self.scripts, self._statuses):
            os.set_blocking(descriptor, False)
        self._loop.add_reader(self._statuses, self._on_status)

    def expect(self) -> "asyncio.Future[int]":
        """The exit status of the script that is sent next."""
        self._status = self._loop.create_future()
        return self._status

    def _on_status(self) -> None:
        """Untrusted: anything but a number is passed over, and a flood ends the conversation."""
        try:
            data = os.read(self._statuses, _MOST_STATUS)
        except BlockingIOError:
            return
        self._pending += data
        if not data or len(self._pending) > _MOST_STATUS:
            self._loop.remove_reader(self._statuses)
            return
        *lines, self._pending = self._pending.split(b"\n")
        if lines and lines[-1].isdigit() and not self._status.done():
            self._status.set_result(int(lines[-1]))

    def close(self) -> None:
        """Let go of both pipes."""
        self._loop.remove_reader(self._statuses)
        for descriptor in (self.scripts, self._statuses):
            self._loop.remove_writer(descriptor)
            os.close(descriptor)


async def feed(descriptor: int, data: bytes, until: "set[asyncio.Future[Any]]") -> None:
    """Write all of it, waiting while the reader does not read. Raises Unavailable if one of `until` is done first."""
    view = memoryview(data)
    while view:
        if any(each.done() for each in until):
            raise Unavailable("the session has ended")
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            await _writable(descriptor, until)
        except OSError as error:
            raise Unavailable("the session does not read any more") from error


async def _writable(descriptor: int, until: "set[asyncio.Future[Any]]") -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_writer(descriptor, _resolve, ready)
    try:
        await asyncio.wait({ready, *until}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        loop.remove_writer(descriptor)


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
