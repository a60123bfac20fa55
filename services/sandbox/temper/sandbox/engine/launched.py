"""A sandbox made by the launcher, seen from the host: commands, limits, files, end.

    control socket   to init: spawn, signal, kill; events come back
    channel          to the interpreter: code in, "ended" back; untrusted
    pipes            output, straight from the command to the host
    pidfd            readable when the last process is gone

Commands of one sandbox run one at a time under a lock. Every wait ends: at the command's end, at a limit, or when the
sandbox dies.
"""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from temper.runtime.errors import Unavailable
from temper.sandbox.engine.base import Command, CommandResult, Limits, Outcome, Sink
from temper.sandbox.engine.channel import INTERPRETER, Interpreter
from temper.sandbox.engine.files import Files
from temper.sandbox.engine.guest import wire
from temper.sandbox.engine.lacking import LackingSandbox, refusal
from temper.sandbox.engine.link import Link
from temper.sandbox.engine.output import PipeReader
from temper.sandbox.engine.verdict import Ending, judge
from temper.sandbox.engine.watch import Meter, ReportedMeter, Watch

_READY_S: Final = 20.0
_KILL_S: Final = 10.0
_END_OF_TEXT: Final = "the interpreter was killed"


class LaunchedSandbox(LackingSandbox):
    """See the module. `on_destroyed(clean)` gives the slot back; not clean means that a process would not die."""

    def __init__(
        self,
        control: socket.socket,
        shared: tuple[str, ...],
        *,
        owner: int | None,
        group: Meter | None,
        isolated: bool,
        revive: Callable[[], Any],
        on_destroyed: Callable[[bool], None],
    ) -> None:
        self._reported = ReportedMeter()
        self._meter: Meter = group or self._reported
        self._link = Link(control, self._reported)
        self._shared = shared
        self._owner = owner
        self._isolated = isolated
        self._revive = revive
        self._on_destroyed = on_destroyed
        self._files: Files | None = None
        self._interpreter: Interpreter | None = None
        self._numbers = 0
        self._turn = asyncio.Lock()
        self._destroyed = False

    async def ready(self) -> None:
        """Wait until the sandbox is closed off. Raises Unavailable with the kernel's reason."""
        expected = self._link.expect("ready")
        await asyncio.wait({expected, self._link.died}, timeout=_READY_S, return_when=asyncio.FIRST_COMPLETED)
        if not expected.done() or expected.result()["event"] == "failed":
            reason = expected.result()["error"] if expected.done() else "it died on the way"
            await self.destroy()
            raise Unavailable(f"cannot set up a sandbox: {reason}")
        roots = dict(zip(self._shared, self._link.directories, strict=True))
        self._files = Files(roots, self._owner, sized=self._isolated)

    @property
    def alive(self) -> bool:
        """Whether a command can still run here."""
        return not self._destroyed and not self._link.died.done()

    async def execute(self, command: Command, limits: Limits, sink: Sink | None = None) -> CommandResult:
        """Run a program to its end or its limit; background children it leaves live on."""
        if sink is not None:
            raise refusal("streaming")
        async with self._turn:
            return await self._execute(command, limits) if self.alive else _dead()

    async def _execute(self, command: Command, limits: Limits) -> CommandResult:
        self._numbers += 1
        number = self._numbers
        watch = Watch(self._link.died, self._meter, limits)
        with contextlib.ExitStack() as cleanup:
            streams = [self._pipe(cleanup, limits, watch) for _ in range(2)]
            stdin = _input(cleanup, command.stdin)
            ended = self._link.expect(number)
            message = {
                "op": "spawn",
                "id": number,
                "argv": list(command.argv),
                "env": dict(command.env),
                "cwd": command.cwd or ".",
            }
            self._link.send(message, (stdin, streams[0][1], streams[1][1]))
            for _, writer in streams:
                os.close(writer)
            ending = await watch.wait(ended)
            await self._enforce(ending, number, ended, limits)
            lost = ending not in {Ending.FINISHED, Ending.DIED} and self._drop_interpreter()
            readers = [reader for reader, _ in streams]
            for reader in readers:
                reader.drain()
            truncated = any(reader.buffer.truncated for reader in readers)
            result = self._judge(watch, ending, truncated=truncated)
            output = [reader.buffer.value() for reader in readers]
        self._link.forget(number)
        result = replace(result, stdout=output[0], stderr=output[1], interpreter_lost=lost)
        return _with_status(result, ended.result() if ended.done() else None)

    def _pipe(self, cleanup: contextlib.ExitStack, limits: Limits, watch: Watch) -> tuple[PipeReader, int]:
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        reader = PipeReader(read_end, limits.output_bytes, watch.flood)
        cleanup.callback(reader.close)
        return reader, write_end

    async def python(self, code: str, limits: Limits) -> CommandResult:
        """Run code in the persistent interpreter, which starts at the first call."""
        async with self._turn:
            return await self._python(code, limits) if self.alive else _dead()

    async def _python(self, code: str, limits: Limits) -> CommandResult:
        watch = Watch(self._link.died, self._meter, limits)
        interpreter = self._interpreter or Interpreter(self._link, limits)
        self._interpreter = interpreter
        interpreter.output.restart(limits.output_bytes, watch.flood)
        answered = interpreter.ask(code)
        ending = await watch.wait(answered)
        lost = ending is not Ending.FINISHED or answered.result() is None
        if ending is not Ending.FINISHED:
            await self._enforce(ending, INTERPRETER, interpreter.exited, limits)
        elif lost:
            ending = await self._bury(interpreter)
        interpreter.output.drain()
        buffer = interpreter.output.buffer
        result = self._judge(watch, ending, truncated=buffer.truncated)
        error = _END_OF_TEXT if lost else answered.result()
        if lost:
            self._drop_interpreter()
        return replace(result, stdout=buffer.value(), error=error or None, interpreter_lost=lost)

    async def _bury(self, interpreter: Interpreter) -> Ending:
        """The interpreter hung up. End it for good, and find out whether the whole sandbox went with it."""
        self._link.send({"op": "signal", "id": INTERPRETER, "signal": int(signal.SIGKILL)})
        awaited = {interpreter.exited, self._link.died}
        await asyncio.wait(awaited, timeout=_KILL_S, return_when=asyncio.FIRST_COMPLETED)
        return Ending.DIED if self._link.died.done() else Ending.FINISHED

    async def _enforce(
        self, ending: Ending, number: int, ended: "asyncio.Future[wire.Message]", limits: Limits
    ) -> None:
        """At a limit: TERM to the command, then KILL to everything but init, the interpreter included."""
        if ending in {Ending.FINISHED, Ending.DIED}:
            return
        if ending is not Ending.OUTPUT and limits.grace_s > 0:
            self._link.send({"op": "signal", "id": number, "signal": int(signal.SIGTERM)})
            await asyncio.wait(
                {ended, self._link.died}, timeout=limits.grace_s, return_when=asyncio.FIRST_COMPLETED
            )
        await self.quiesce()

    async def quiesce(self) -> None:
        """Kill every process of the agent; files stay. Destroys the sandbox if init does not answer."""
        killed = self._link.expect("killed")
        self._link.send({"op": "kill"})
        await asyncio.wait({killed, self._link.died}, timeout=_KILL_S, return_when=asyncio.FIRST_COMPLETED)
        if not killed.done():
            self._link.forget("killed")
            self._link.kill()

    def _judge(self, watch: Watch, ending: Ending, *, truncated: bool) -> CommandResult:
        evidence = watch.evidence()
        if self._destroyed and ending is Ending.FINISHED:
            ending = (
                Ending.DIED
            )  # without a namespace to die with, a command is swept before the sandbox ends
        full = self._files is not None and self._files.full
        outcome = judge(ending, evidence, disk_full=full, truncated=truncated)
        return CommandResult(outcome, truncated=truncated, evidence=evidence)

    def _drop_interpreter(self) -> bool:
        """Forget the interpreter; True if there was one."""
        if self._interpreter is None:
            return False
        self._interpreter.close()
        self._interpreter = None
        self._link.forget(INTERPRETER)
        return True

    async def put_file(self, path: str, content: bytes, mode: int = 0o644) -> None:
        """Write a file, creating directories. Raises Rejected, Exhausted."""
        self._reach().put(path, content, mode)

    async def get_file(self, path: str, max_bytes: int) -> tuple[bytes, bool]:
        """The file's first bytes, and whether there are more. Raises Rejected."""
        return self._reach().get(path, max_bytes)

    def _reach(self) -> Files:
        if self._files is None or not self.alive:
            raise Unavailable("the sandbox is gone")
        return self._files

    async def reset(self) -> None:
        """As new: everything killed and discarded, then made again in the same slot."""
        async with self._turn:
            await self._end()
            if not self._link.died.done():
                raise Unavailable("the sandbox would not die, so its place is not used again")
            control = await self._revive()
            self._link = Link(control, self._reported)
            await self.ready()

    async def destroy(self) -> None:
        """Kill everything, free everything. Idempotent."""
        if self._destroyed:
            return
        self._destroyed = True
        try:
            await self._end()
        finally:
            self._on_destroyed(self._link.died.done())

    async def _end(self) -> None:
        if not self._isolated:  # no namespace dies with init: sweep first
            await self.quiesce()
        self._link.kill()
        await asyncio.wait({self._link.died}, timeout=_KILL_S)
        self._drop_interpreter()
        if self._files is not None:
            self._files.close()
            self._files = None
        self._link.close()


def _input(cleanup: contextlib.ExitStack, content: bytes) -> int:
    """A descriptor to read `content` from: a sealed-off memory file, so a command that never reads blocks nobody."""
    if not content:
        descriptor = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    else:
        descriptor = os.memfd_create("stdin", os.MFD_CLOEXEC)
        os.write(descriptor, content)
        os.lseek(descriptor, 0, os.SEEK_SET)
    cleanup.callback(os.close, descriptor)
    return descriptor


def _with_status(result: CommandResult, event: wire.Message | None) -> CommandResult:
    if event is None:
        return result
    if event["event"] == "refused":
        return replace(result, error=event["error"])
    code = os.waitstatus_to_exitcode(event["status"])
    return replace(result, exit_code=code if code >= 0 else None, signal=-code if code < 0 else None)


def _dead() -> CommandResult:
    return CommandResult(Outcome.SANDBOX_DIED, error="the sandbox had already died")
