"""Sessions: programs that outlive the call that started them, each under a keeper of its own.

    link         to the keeper: spawn, signal, kill; the exit status comes back
    input        a pipe or the terminal's far end
    output       pipes or the terminal, read as they fill, to the sink and to a capped buffer
    scripts      (shells) script text goes in on one pipe, the exit status of each comes back on another

A shell tells the end of a script itself, so nothing polls and nothing sleeps. What the script wrote lies in the pipes before
its status does, so its output is complete when the status arrives; what it left in the background writes into the next one's.
"""

import asyncio
import fcntl
import os
import pty
import socket
import struct
import termios
from typing import Any, Final

from temper.runtime.errors import Rejected, Unavailable
from temper.sandbox.engine.base import SessionSpec, Sink, Stream
from temper.sandbox.engine.conversation import Conversation, require_possible
from temper.sandbox.engine.link import Link
from temper.sandbox.engine.output import PipeReader
from temper.sandbox.engine.running import Judge, tagged
from temper.sandbox.engine.shell import COMMAND, Shell, feed, framed
from temper.sandbox.engine.watch import Meter, ReportedMeter

_START_S: Final = 20.0
_ONLY: Final = 1
"""Number of a session's one command."""


async def open_session(
    sandbox: Link,
    name: str,
    spec: SessionSpec,
    sink: Sink | None,
    owner: int | None,
    meter: Meter,
    judge: Judge,
) -> "LaunchedSession":
    """Fork a keeper in the sandbox and start the session's program below it. Raises Rejected, Unavailable."""
    require_possible(spec)
    ours, theirs = socket.socketpair()
    with theirs:
        link = Link(ours, ReportedMeter())
        ready = link.expect("ready")
        sandbox.send({"op": "keeper", "session": name}, (theirs.fileno(),))
    await asyncio.wait({ready, sandbox.died}, timeout=_START_S, return_when=asyncio.FIRST_COMPLETED)
    if not ready.done():
        link.close()
        raise Unavailable("the sandbox cannot keep another session")
    session = LaunchedSession(link, name, spec, sink, owner, meter, judge)
    await session.start()
    return session


class LaunchedSession(Conversation):
    """See the module."""

    def __init__(
        self,
        link: Link,
        name: str,
        spec: SessionSpec,
        sink: Sink | None,
        owner: int | None,
        meter: Meter,
        judge: Judge,
    ) -> None:
        super().__init__(name, spec, sink, meter, judge, link.expect(_ONLY), link.died)
        self._link = link
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._typing = asyncio.Lock()
        self._input = -1
        self._shell: Shell | None = None

    async def start(self) -> None:
        """Spawn the program and wait until it runs. Raises Rejected with the reason if it cannot."""
        spec = self._spec
        theirs = self._terminal() if spec.terminal else self._pipes()
        started = self._link.expect("started")
        message = {
            "op": "spawn",
            "id": _ONLY,
            "argv": list(spec.argv or COMMAND),
            "env": ({"TERM": "xterm-256color"} if spec.terminal else {}) | dict(spec.env),
            "cwd": spec.cwd,
            "terminal": spec.terminal,
        }
        self._link.send(message, theirs)
        for descriptor in set(theirs):
            os.close(descriptor)
        awaited = {started, self._ended, self._link.died}
        await asyncio.wait(awaited, timeout=_START_S, return_when=asyncio.FIRST_COMPLETED)
        if started.done():
            self.pid = started.result()["pid"]
            return
        reason = self._ended.result().get("error", "it ended") if self._ended.done() else "no answer"
        await self.close(0)
        raise Rejected(f"cannot start {spec.argv}: {reason}", field="argv")

    def _terminal(self) -> tuple[int, ...]:
        ours, theirs = pty.openpty()
        os.set_inheritable(ours, False)
        if self._owner is not None:
            os.fchown(theirs, self._owner, self._owner)
        _set_size(ours, self._spec.rows, self._spec.columns)
        self._input = os.dup(ours)
        os.set_blocking(self._input, False)
        self._read(ours, Stream.STDOUT)
        return (theirs, theirs, theirs)

    def _pipes(self) -> tuple[int, ...]:
        if self._spec.stdin:
            stdin, self._input = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(self._input, False)
        else:
            stdin = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        theirs = [stdin]
        for stream in Stream:
            read_end, write_end = os.pipe2(os.O_CLOEXEC)
            self._read(read_end, stream)
            theirs.append(write_end)
        if not self._spec.argv:
            self._shell = Shell()
            theirs += self._shell.theirs
        return tuple(theirs)

    def _read(self, descriptor: int, stream: Stream) -> None:
        sink = tagged(self._sink, stream)
        self._readers.append(PipeReader(descriptor, self._spec.output_bytes, lambda: None, sink))

    def _send_script(self, script: str) -> "tuple[asyncio.Future[int], asyncio.Task[None]]":
        assert self._shell is not None
        status = self._shell.expect()
        return status, self._loop.create_task(
            feed(self._shell.scripts, framed(script), self._until_its_end())
        )

    async def write(self, data: bytes) -> None:
        """Type; waits while the program does not read. Raises Rejected, Unavailable."""
        if self._input < 0:
            raise Rejected(
                "this session has no standard input", field="stdin", hint="open it with stdin or a terminal"
            )
        async with self._typing:
            await feed(self._input, data, self._until_its_end())

    def _until_its_end(self) -> "set[asyncio.Future[Any]]":
        return {self._ended, self._link.died}

    def _set_size(self, rows: int, columns: int) -> None:
        _set_size(self._input, rows, columns)

    def _signal_tree(self, number: int) -> None:
        self._link.send({"op": "signal_tree", "signal": number})

    def _kill_tree(self) -> "asyncio.Future[Any]":
        self._link.forget("killed")
        killed = self._link.expect("killed")
        self._link.send({"op": "kill"})
        return killed

    def _let_go(self) -> None:
        if self._shell is not None:
            self._shell.close()
        if self._input >= 0:
            self._loop.remove_writer(self._input)
            os.close(self._input)
            self._input = -1
        self._link.kill()
        self._link.close()


def _set_size(descriptor: int, rows: int, columns: int) -> None:
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
