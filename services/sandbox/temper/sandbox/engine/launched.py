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
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, Protocol

from temper.runtime.errors import Unavailable
from temper.sandbox.engine.base import Command, CommandResult, Limits, Outcome
from temper.sandbox.engine.files import Files
from temper.sandbox.engine.guest import wire
from temper.sandbox.engine.launcher import Newborn, exited
from temper.sandbox.engine.output import PipeReader
from temper.sandbox.engine.verdict import Counters, Ending, judge, measure

_READY_S: Final = 20.0
_KILL_S: Final = 10.0
_CPU_POLL_S: Final = 0.05
_INTERPRETER: Final = 0
_END_OF_TEXT: Final = "the interpreter was killed"


class Meter(Protocol):
    """Where a sandbox's counters come from: a control group, or what its init reports."""

    def counters(self) -> Counters: ...

    def reset_peak(self) -> None: ...


class ReportedMeter:
    """Counters from init's own reports, for a host without control groups: late, and blind to running children."""

    def __init__(self) -> None:
        self._now = Counters()

    def report(self, event: Mapping[str, Any]) -> None:
        """Take the figures of an `exited` event."""
        peak = max(self._now.peak_memory_bytes, int(event["peak_bytes"]))
        self._now = Counters(cpu_s=float(event["total_cpu_s"]), peak_memory_bytes=peak)

    def counters(self) -> Counters:
        """As last reported."""
        return self._now

    def reset_peak(self) -> None:
        """Start a new high-water mark."""
        self._now = replace(self._now, peak_memory_bytes=0)


class Link:
    """The connection to a sandbox's init and the news of its death."""

    def __init__(self, newborn: Newborn, meter: ReportedMeter) -> None:
        self._loop = asyncio.get_running_loop()
        self._control = newborn.control
        self._pidfd = newborn.pidfd
        self._meter = meter
        self._waiting: dict[object, asyncio.Future[wire.Message]] = {}
        self.died: asyncio.Future[None] = self._loop.create_future()
        """Done once every process of the sandbox is gone."""
        self.directories: list[int] = []
        """Descriptors of the shared directories, sent with "ready"."""
        self._loop.add_reader(self._control, self._on_event)
        self._loop.add_reader(self._pidfd, self._on_death)

    def send(self, message: wire.Message, descriptors: tuple[int, ...] = ()) -> None:
        """Tell init something; silently nothing if it is gone, since `died` says so."""
        with contextlib.suppress(OSError):
            wire.send(self._control, message, descriptors)

    def expect(self, key: object) -> asyncio.Future[wire.Message]:
        """The next event under this key: "ready", "killed", or the number of a command."""
        return self._waiting.setdefault(key, self._loop.create_future())

    def forget(self, key: object) -> None:
        """No longer wait for it."""
        self._waiting.pop(key, None)

    def _on_event(self) -> None:
        try:
            received = wire.receive(self._control)
        except (OSError, ValueError):
            received = None
        if received is None:
            self._loop.remove_reader(self._control)
            self.kill()
            return
        message, descriptors = received
        if message["event"] == "ready":
            self.directories = descriptors
        elif message["event"] == "exited":
            self._meter.report(message)
        if message["event"] != "started":
            key = message.get("id", "ready" if message["event"] == "failed" else message["event"])
            waiting = self._waiting.pop(key, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(message)

    def _on_death(self) -> None:
        self._loop.remove_reader(self._pidfd)
        if not self.died.done():
            self.died.set_result(None)

    def kill(self) -> None:
        """Kill init, and with it everything in its namespace."""
        if not self.died.done() and self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def close(self) -> None:
        """Free the descriptors. Only after death."""
        for source in (self._control, self._pidfd):
            self._loop.remove_reader(source)
        self._control.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


class LaunchedSandbox:
    """See the module. `on_destroyed` gives the slot back."""

    def __init__(
        self,
        newborn: Newborn,
        shared: tuple[str, ...],
        *,
        owner: int | None,
        group: Meter | None,
        isolated: bool,
        revive: Callable[[], Any],
        on_destroyed: Callable[[], None],
    ) -> None:
        self._reported = ReportedMeter()
        self._meter: Meter = group or self._reported
        self._link = Link(newborn, self._reported)
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

    async def execute(self, command: Command, limits: Limits) -> CommandResult:
        """Run a program to its end or its limit; background children it leaves live on."""
        async with self._turn:
            return await self._execute(command, limits) if self.alive else _dead()

    async def _execute(self, command: Command, limits: Limits) -> CommandResult:
        self._numbers += 1
        number = self._numbers
        watch = Watch(self._link, self._meter, limits)
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
            lost = await self._enforce(ending, number, ended, limits)
            readers = [reader for reader, _ in streams]
            for reader in readers:
                reader.drain()
            truncated = any(reader.buffer.truncated for reader in readers)
            result = self._judge(watch, ending, truncated=truncated)
            output = [reader.buffer.value() for reader in readers]
        self._link.forget(number)
        result = replace(result, stdout=output[0], stderr=output[1], interpreter_lost=lost)
        return _with_status(result, ended.result() if ended.done() else None)

    def _pipe(self, cleanup: contextlib.ExitStack, limits: Limits, watch: "Watch") -> tuple[PipeReader, int]:
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        reader = PipeReader(read_end, limits.output_bytes, watch.flood)
        cleanup.callback(reader.close)
        return reader, write_end

    async def python(self, code: str, limits: Limits) -> CommandResult:
        """Run code in the persistent interpreter, which starts at the first call."""
        async with self._turn:
            return await self._python(code, limits) if self.alive else _dead()

    async def _python(self, code: str, limits: Limits) -> CommandResult:
        watch = Watch(self._link, self._meter, limits)
        interpreter = self._interpreter or Interpreter(self._link, limits)
        self._interpreter = interpreter
        interpreter.output.restart(limits.output_bytes, watch.flood)
        answered = interpreter.ask(code)
        ending = await watch.wait(answered)
        lost = ending is not Ending.FINISHED or answered.result() is None
        if ending is not Ending.FINISHED:
            await self._enforce(ending, _INTERPRETER, self._link.expect(_INTERPRETER), limits)
        interpreter.output.drain()
        buffer = interpreter.output.buffer
        result = self._judge(watch, ending, truncated=buffer.truncated)
        error = _END_OF_TEXT if lost else answered.result()
        if lost:
            self._drop_interpreter()
        return replace(result, stdout=buffer.value(), error=error or None, interpreter_lost=lost)

    async def _enforce(
        self, ending: Ending, number: int, ended: "asyncio.Future[wire.Message]", limits: Limits
    ) -> bool:
        """At a limit: TERM to the command, then KILL to everything but init. True if that took the interpreter."""
        if ending in {Ending.FINISHED, Ending.DIED}:
            return False
        if ending is not Ending.OUTPUT and limits.grace_s > 0:
            self._link.send({"op": "signal", "id": number, "signal": int(signal.SIGTERM)})
            await asyncio.wait(
                {ended, self._link.died}, timeout=limits.grace_s, return_when=asyncio.FIRST_COMPLETED
            )
        await self.quiesce()
        return self._drop_interpreter()

    async def quiesce(self) -> None:
        """Kill every process of the agent; files stay. Destroys the sandbox if init does not answer."""
        killed = self._link.expect("killed")
        self._link.send({"op": "kill"})
        await asyncio.wait({killed, self._link.died}, timeout=_KILL_S, return_when=asyncio.FIRST_COMPLETED)
        if not killed.done():
            self._link.forget("killed")
            self._link.kill()

    def _judge(self, watch: "Watch", ending: Ending, *, truncated: bool) -> CommandResult:
        evidence = watch.evidence()
        full = self._files is not None and self._files.full
        outcome = judge(ending, evidence, disk_full=full, truncated=truncated)
        return CommandResult(outcome, truncated=truncated, evidence=evidence)

    def _drop_interpreter(self) -> bool:
        if self._interpreter is None:
            return False
        self._interpreter.close()
        self._interpreter = None
        self._link.forget(_INTERPRETER)
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
            newborn = await self._revive()
            self._link = Link(newborn, self._reported)
            await self.ready()

    async def destroy(self) -> None:
        """Kill everything, free everything. Idempotent."""
        if self._destroyed:
            return
        self._destroyed = True
        try:
            await self._end()
        finally:
            self._on_destroyed()

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


class Interpreter:
    """The host's end of the persistent Python: its channel and its one output pipe."""

    def __init__(self, link: Link, limits: Limits) -> None:
        self._loop = asyncio.get_running_loop()
        self._channel, theirs = socket.socketpair()
        self._channel.setblocking(False)
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        self.output = PipeReader(read_end, limits.output_bytes, lambda: None)
        """Its standard output and error, in the order they were written."""
        self._decoder = wire.Decoder()
        self._answer: asyncio.Future[str | None] = self._loop.create_future()
        self._number = 0
        self._sending: asyncio.Task[None] | None = None
        with theirs:
            link.send({"op": "interpreter", "id": _INTERPRETER}, (theirs.fileno(), write_end))
        os.close(write_end)
        self._loop.add_reader(self._channel, self._on_readable)

    def ask(self, code: str) -> "asyncio.Future[str | None]":
        """Send code. The future gives the error text, "" for none, or None if the interpreter went away."""
        self._number += 1
        self._answer = self._loop.create_future()
        frame = wire.encode({"id": self._number, "code": code})
        try:
            sent = self._channel.send(frame)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._resolve(None)
            return self._answer
        if sent < len(frame):
            self._sending = self._loop.create_task(self._send(frame[sent:]))
        return self._answer

    async def _send(self, rest: bytes) -> None:
        try:
            await self._loop.sock_sendall(self._channel, rest)
        except OSError:
            self._resolve(None)

    def _on_readable(self) -> None:
        """Untrusted: anything but a well-formed answer to the present question ends the conversation."""
        try:
            data = self._channel.recv(1 << 16)
            messages = self._decoder.feed(data) if data else None
        except BlockingIOError:
            return
        except (OSError, ValueError):
            messages = None
        if messages is None:
            self._loop.remove_reader(self._channel)
            self._resolve(None)
            return
        for message in messages:
            error = message.get("error")
            if message.get("id") == self._number and (error is None or isinstance(error, str)):
                self._resolve((error or "")[:4096])

    def _resolve(self, answer: str | None) -> None:
        if not self._answer.done():
            self._answer.set_result(answer)

    def close(self) -> None:
        """Hang up; the interpreter ends at the end of its input."""
        self._loop.remove_reader(self._channel)
        if self._sending is not None:
            self._sending.cancel()
        self._resolve(None)
        self._channel.close()
        self.output.close()


class Watch:
    """Waits for the end of one command, whichever comes first, and measures it."""

    def __init__(self, link: Link, meter: Meter, limits: Limits) -> None:
        self._link = link
        self._meter = meter
        self._limits = limits
        meter.reset_peak()
        self._before = meter.counters()
        self._flood: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._started = time.monotonic()

    def flood(self) -> None:
        """The output will not end."""
        if not self._flood.done():
            self._flood.set_result(None)

    async def wait(self, ended: "asyncio.Future[Any]") -> Ending:
        """Why the wait is over."""
        until = self._started + self._limits.wall_s
        step = self._limits.wall_s if self._limits.cpu_s is None else _CPU_POLL_S
        awaited = {ended, self._flood, self._link.died}
        while (remaining := until - time.monotonic()) > 0:
            await asyncio.wait(awaited, timeout=min(step, remaining), return_when=asyncio.FIRST_COMPLETED)
            if ended.done() and not (self._link.died.done() and ended.result() is None):
                return Ending.FINISHED
            if self._link.died.done():
                return Ending.DIED
            if self._flood.done():
                return Ending.OUTPUT
            if self._over_cpu():
                return Ending.CPU
        return Ending.WALL

    def _over_cpu(self) -> bool:
        limit = self._limits.cpu_s
        return limit is not None and self._meter.counters().cpu_s - self._before.cpu_s >= limit

    def evidence(self) -> Any:
        """What was measured since the start."""
        return measure(self._before, self._meter.counters(), time.monotonic() - self._started)


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


__all__ = ["LaunchedSandbox", "Meter", "ReportedMeter", "exited"]
