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
import signal
import socket
import struct
import termios
from dataclasses import replace
from typing import Any, Final

from temper.runtime.errors import Rejected, Unavailable
from temper.sandbox.engine.base import (
    CommandResult,
    Evidence,
    Limits,
    Outcome,
    SessionSpec,
    Sink,
    Stream,
)
from temper.sandbox.engine.guest import wire
from temper.sandbox.engine.link import Link
from temper.sandbox.engine.output import PipeReader
from temper.sandbox.engine.running import DELIVER_S, Judge, tagged, terminate, with_status
from temper.sandbox.engine.shell import COMMAND, Shell, feed, framed
from temper.sandbox.engine.verdict import Ending
from temper.sandbox.engine.watch import Meter, ReportedMeter, Watch

_START_S: Final = 20.0
_KILL_S: Final = 10.0
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
    if spec.terminal and not spec.argv:
        raise Rejected(
            "a shell for scripts has no terminal", field="argv", hint='name a program: ("/bin/sh",)'
        )
    if spec.terminal:
        _require_size(spec.rows, spec.columns)
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


class LaunchedSession:
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
        self._link = link
        self._spec = spec
        self._sink = sink
        self._owner = owner
        self._meter = meter
        self._judge = judge
        self._loop = asyncio.get_running_loop()
        self._turn = asyncio.Lock()
        self._typing = asyncio.Lock()
        self._readers: list[PipeReader] = []
        self._input = -1
        self._shell: Shell | None = None
        self._ended = link.expect(_ONLY)
        self._result: CommandResult | None = None
        self.closed = False
        """Whether its descriptors are given back."""
        self.id = name
        """Unique in its sandbox."""
        self.pid = 0
        """Its first process."""

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
        self._set_size(ours, self._spec.rows, self._spec.columns)
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

    @property
    def alive(self) -> bool:
        """Whether its first process runs."""
        return self._result is None and not self._ended.done() and not self._link.died.done()

    async def run(self, script: str, limits: Limits, sink: Sink | None = None) -> CommandResult:
        """Run a script to exactly its exit status. At a limit the session ends. Raises Rejected."""
        if self._shell is None:
            raise Rejected("this session is no shell", field="argv", hint="open one without a program")
        if "\0" in script:
            raise Rejected("a script cannot hold a zero byte", field="script")
        async with self._turn:
            if not self.alive:
                return CommandResult(Outcome.SANDBOX_DIED, error="the session had already ended")
            return await self._run(self._shell, script, limits, sink)

    async def _run(self, shell: Shell, script: str, limits: Limits, sink: Sink | None) -> CommandResult:
        watch = Watch(self._link.died, self._meter, limits)
        for reader, stream in zip(self._readers, Stream, strict=True):
            reader.restart(limits.output_bytes, watch.flood, tagged(sink or self._sink, stream))
        status = shell.expect()
        typing = self._loop.create_task(feed(shell.scripts, framed(script), self._until_its_end()))
        over = self._loop.create_task(_first(status, self._ended))
        ending = await watch.wait(over)
        for task in (typing, over):
            task.cancel()
        if ending not in {Ending.FINISHED, Ending.DIED}:
            await self._end(limits.grace_s if ending is not Ending.OUTPUT else 0)
        evidence = watch.evidence()
        for reader in self._readers:
            await reader.finish(DELIVER_S)
        truncated = any(reader.buffer.truncated for reader in self._readers)
        result = self._judge(ending, evidence, truncated)
        stdout, stderr = (reader.buffer.value() for reader in self._readers)
        result = replace(result, stdout=stdout, stderr=stderr)
        if status.done():
            return replace(result, exit_code=status.result())
        return with_status(result, self._ended.result() if self._ended.done() else None)

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

    async def resize(self, rows: int, columns: int) -> None:
        """Change the size of the terminal. Raises Rejected."""
        if not self._spec.terminal:
            raise Rejected("this session has no terminal", field="terminal")
        _require_size(rows, columns)
        if self._input >= 0:
            self._set_size(self._input, rows, columns)

    @staticmethod
    def _set_size(descriptor: int, rows: int, columns: int) -> None:
        fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    async def signal(self, number: int) -> None:
        """Send a signal to every process of the tree. Raises Rejected."""
        if not 0 < number < signal.NSIG:
            raise Rejected(f"no signal {number}", field="signal", hint=f"1 to {signal.NSIG - 1}")
        self._link.send({"op": "signal_tree", "signal": number})

    async def wait(self) -> CommandResult:
        """Its end, with exit code or signal and the output that was kept."""
        await asyncio.wait({self._ended, self._link.died}, return_when=asyncio.FIRST_COMPLETED)
        return await self._conclude()

    async def _conclude(self) -> CommandResult:
        if self._result is None:
            for reader in self._readers:
                await reader.finish(DELIVER_S)
            ending = Ending.FINISHED if self._ended.done() else Ending.DIED
            truncated = any(reader.buffer.truncated for reader in self._readers)
            result = self._judge(ending, Evidence(), truncated)
            output = [reader.buffer.value() for reader in self._readers]
            result = replace(result, stdout=output[0], stderr=output[1] if len(output) > 1 else b"")
            self._result = with_status(result, self._ended.result() if self._ended.done() else None)
        return self._result

    async def close(self, grace_s: float = 0.2) -> CommandResult:
        """Hang up, TERM, then KILL its whole tree. Idempotent."""
        if self._result is not None and self.closed:
            return self._result
        await self._end(grace_s)
        result = await self._conclude()
        self._release()
        return result

    async def _end(self, grace_s: float) -> None:
        """End the tree: politely within the grace, then for good; returns when its last process is gone."""
        if grace_s > 0 and self.alive:
            self._link.send({"op": "signal_tree", "signal": int(signal.SIGHUP)})
            await terminate(self._link, {"op": "signal_tree"}, self._ended, grace_s)
        killed = self._link.expect("killed")
        self._link.send({"op": "kill"})
        await asyncio.wait({killed, self._link.died}, timeout=_KILL_S, return_when=asyncio.FIRST_COMPLETED)
        self._link.forget("killed")

    def lost(self) -> None:
        """The sandbox has ended, and the session with it."""
        if self._result is None:
            self._result = self._judge(Ending.DIED, Evidence(), False)
        self._release()

    def _release(self) -> None:
        if self.closed:
            return
        self.closed = True
        for reader in self._readers:
            reader.close()
        self._readers = []
        if self._shell is not None:
            self._shell.close()
        if self._input >= 0:
            self._loop.remove_writer(self._input)
            os.close(self._input)
            self._input = -1
        self._link.kill()
        self._link.close()


async def _first(status: "asyncio.Future[int]", ended: "asyncio.Future[wire.Message]") -> bool:
    await asyncio.wait({status, ended}, return_when=asyncio.FIRST_COMPLETED)
    return True


def _require_size(rows: int, columns: int) -> None:
    if not (0 < rows < 1 << 16 and 0 < columns < 1 << 16):
        raise Rejected(f"no terminal has {rows} rows of {columns}", field="rows", hint="1 to 65535")
