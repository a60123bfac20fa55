"""A sandbox over one container: commands, the interpreter, limits, files.

Commands run one at a time under a lock. Every wait ends: at the command's end, at a limit, or when the container dies.
"""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

from temper.runtime.errors import Exhausted, Rejected, Unavailable
from temper.sandbox.engine.base import (
    Command,
    CommandResult,
    Evidence,
    Limits,
    Outcome,
    ProcessInfo,
    Session,
    SessionSpec,
    Sink,
)
from temper.sandbox.engine.container import files, processes
from temper.sandbox.engine.container.door import Door
from temper.sandbox.engine.container.interpreter import Interpreter
from temper.sandbox.engine.container.programs import Run, script
from temper.sandbox.engine.container.seam import Container
from temper.sandbox.engine.container.sessions import ContainerSession, open_session
from temper.sandbox.engine.door import listen_inside
from temper.sandbox.engine.filecalls import FileCalls
from temper.sandbox.engine.files import Files
from temper.sandbox.engine.lacking import refusal
from temper.sandbox.engine.snapshots import Snapshots
from temper.sandbox.engine.verdict import Ending, judge
from temper.sandbox.engine.watch import Watch

_KILL_S: Final = 10.0
_ENDED_S: Final = 10.0
_APPEAR_S: Final = 0.25
_UNCLEAR: Final = frozenset({None, 128, 255})
"""Statuses by which a runtime says that it has lost a program, or the container with it; a program may say the same."""
_END_OF_TEXT: Final = "the interpreter was killed"
_FLOOD_BYTES: Final = 64 << 20
_MOST_SESSIONS: Final = 64

Make = Callable[[], Awaitable[Container]]


class ContainerSandbox(FileCalls):
    """See the module. `make` gives a fresh container; `on_destroyed` gives the slot back."""

    def __init__(
        self, container: Container, make: Make, snapshots: Snapshots, on_destroyed: Callable[[], None]
    ) -> None:
        self._container = container
        self._make = make
        self._snapshots = snapshots
        self._on_destroyed = on_destroyed
        self._interpreter: Interpreter | None = None
        self._sessions: dict[str, ContainerSession] = {}
        self._opened = 0
        self._door: Door | None = None
        self._place = object()
        self._turn = asyncio.Lock()
        self._destroyed = False

    @property
    def alive(self) -> bool:
        """Whether a command can still run here."""
        return not self._destroyed and not self._container.died.done()

    @property
    def reaches_files(self) -> bool:
        """Whether the trees are open on this host."""
        return self._container.files is not None

    async def has_program(self, name: str) -> bool:
        """Whether a program of this name is found inside. Raises Unavailable."""
        return (await script(self._container, 'command -v -- "$1" >/dev/null', name))[0] == 0

    async def execute(self, command: Command, limits: Limits, sink: Sink | None = None) -> CommandResult:
        """Run a program to its end or its limit; background children it leaves live on."""
        async with self._turn:
            await self._shut_door()
            return await self._execute(command, limits, sink) if self.alive else _dead()

    async def _execute(self, command: Command, limits: Limits, sink: Sink | None) -> CommandResult:
        run = Run(self._container, command, limits, sink)
        watch = Watch(self._container.died, self._container.meter, limits)
        try:
            program = await run.start()
        except Unavailable as error:
            return await self._refused(watch, error)
        run.flooded.add_done_callback(lambda _: watch.flood())
        ending = await watch.wait(program.ended)
        lost = await self._enforce(ending, program.ended, limits)
        await run.finish()
        if ending is Ending.FINISHED and program.ended.result() in _UNCLEAR and await self._confirm_death():
            ending = Ending.DIED
        return replace(
            run.complete(self._judge(ending, watch.evidence(), run.truncated)), interpreter_lost=lost
        )

    async def _refused(self, watch: Watch, error: Unavailable) -> CommandResult:
        """A program that could not start: the agent's doing if a limit was hit, else the host's failure."""
        if not self.alive:
            return _dead()
        result = self._judge(Ending.FINISHED, watch.evidence(), False)
        if result.outcome is Outcome.OK:
            raise error
        return replace(result, error=error.message)

    async def python(self, code: str, limits: Limits) -> CommandResult:
        """Run code in the persistent interpreter, which starts at the first call."""
        async with self._turn:
            await self._shut_door()
            return await self._python(code, limits) if self.alive else _dead()

    async def _python(self, code: str, limits: Limits) -> CommandResult:
        if not self._container.python:
            raise refusal("python: the image has no python3")
        watch = Watch(self._container.died, self._container.meter, limits)
        interpreter = self._interpreter or await Interpreter.begin(self._container)
        self._interpreter = interpreter
        answered = interpreter.ask(code, limits, max(limits.output_bytes * 16, _FLOOD_BYTES), watch.flood)
        ending = await watch.wait(answered)
        lost = ending is not Ending.FINISHED or answered.result() is None
        await interpreter.settle()
        buffer = interpreter.buffer
        if ending is not Ending.FINISHED:
            await self._enforce(ending, answered, limits)
        elif lost:
            ending = await self._bury(interpreter)
        error = _END_OF_TEXT if lost else answered.result()
        if lost:
            await self._drop_interpreter()
        result = self._judge(ending, watch.evidence(), buffer.truncated)
        return replace(result, stdout=buffer.value(), error=error or None, interpreter_lost=lost)

    async def _bury(self, interpreter: Interpreter) -> Ending:
        """It hung up. End it for good, and find out whether the whole container went with it."""
        if interpreter.pid and not self._container.died.done():
            with contextlib.suppress(Unavailable):
                await script(self._container, 'kill -9 "$1" 2>/dev/null; true', str(interpreter.pid))
        return Ending.DIED if await self._confirm_death() else Ending.FINISHED

    async def _confirm_death(self) -> bool:
        """A container's death may be told a moment after its programs' streams have ended."""
        if self._destroyed:
            return True
        try:
            await script(self._container, "true")
        except Unavailable:
            await asyncio.wait({self._container.died}, timeout=_KILL_S)
        return self._container.died.done()

    async def _enforce(self, ending: Ending, ended: "asyncio.Future[Any]", limits: Limits) -> bool:
        """At a limit: TERM, then KILL to everything but the sessions, the interpreter included; True if there was one."""
        if ending in {Ending.FINISHED, Ending.DIED}:
            return False
        spared = frozenset(self._keepers())
        if ending is not Ending.OUTPUT and limits.grace_s > 0:
            await self._sweep(signal.SIGTERM, spared)
            awaited = {ended, self._container.died}
            await asyncio.wait(awaited, timeout=limits.grace_s, return_when=asyncio.FIRST_COMPLETED)
        await self._kill(ended, spared)
        return await self._drop_interpreter()

    async def _kill(self, ended: "asyncio.Future[Any]", spared: frozenset[int]) -> None:
        """Kill until the program is told to have ended: one that the runtime is still starting appears after the first try.

        A runtime that never tells is not waited for: the last sweep has found nobody.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ENDED_S):
                while not self._container.died.done():
                    await self._sweep(signal.SIGKILL, spared)
                    awaited = {ended, self._container.died}
                    await asyncio.wait(awaited, timeout=_APPEAR_S, return_when=asyncio.FIRST_COMPLETED)
                    if ended.done():
                        return

    async def _sweep(self, number: signal.Signals, spared: frozenset[int]) -> None:
        """A container that cannot be swept is ended."""
        try:
            await self._container.sweep(int(number), spared)
        except Unavailable:
            await self._container.remove()

    async def quiesce(self) -> None:
        """Kill every process of the agent, sessions included; files stay."""
        if self.alive:
            await self._sweep(signal.SIGKILL, frozenset())
        await self._drop_interpreter()
        await self._close_door()

    async def _drop_interpreter(self) -> bool:
        if self._interpreter is None:
            return False
        interpreter, self._interpreter = self._interpreter, None
        await interpreter.close()
        return True

    def _judge(self, ending: Ending, evidence: Evidence, truncated: bool) -> CommandResult:
        if self._destroyed and ending is Ending.FINISHED:
            ending = Ending.DIED
        full = self._container.files is not None and self._container.files.full
        outcome = judge(ending, evidence, disk_full=full, truncated=truncated)
        return CommandResult(outcome, truncated=truncated, evidence=evidence)

    async def open_session(self, spec: SessionSpec, sink: Sink | None = None) -> Session:
        """Start a program that outlives this call. Raises Rejected, Exhausted, Unavailable."""
        if not self._container.python:
            raise refusal("sessions: the image has no python3")
        self._require_alive()
        self._sessions = {name: each for name, each in self._sessions.items() if not each.closed}
        if len(self._sessions) >= _MOST_SESSIONS:
            raise Exhausted(f"{_MOST_SESSIONS} sessions are open", hint="close one")
        self._opened += 1
        name = f"s{self._opened}"
        session = await open_session(self._container, name, spec, sink, self._judge)
        self._sessions[name] = session
        return session

    def _keepers(self) -> dict[int, str]:
        """Pids of our own programs inside: a session's keeper with the session's id, the door with none."""
        keepers = {pid: name for name, each in self._sessions.items() for pid in each.ours if not each.closed}
        return keepers | ({self._door.pid: ""} if self._door is not None else {})

    async def list_processes(self) -> list[ProcessInfo]:
        """What runs now. Raises Unavailable."""
        self._require_alive()
        return processes.of_sessions(await processes.listing(self._container), self._keepers())

    async def signal(self, pid: int, number: int) -> None:
        """Send a signal to one process of the agent. Raises Rejected, Unavailable."""
        if not 0 < number < signal.NSIG:
            raise Rejected(f"no signal {number}", field="signal", hint=f"1 to {signal.NSIG - 1}")
        self._require_alive()
        await processes.send(self._container, pid, number, self._keepers())

    def _require_alive(self) -> None:
        if not self.alive:
            raise Unavailable("the sandbox is gone")

    def _reach(self) -> Files:
        self._require_alive()
        if self._container.files is None:
            raise refusal("trees")
        return self._container.files

    def _died(self) -> "asyncio.Future[None]":
        return self._container.died

    async def put_file(self, path: str, content: bytes, mode: int = 0o644) -> None:
        """Write a file, creating directories. Raises Rejected, Exhausted."""
        self._require_alive()
        if self._container.files is not None:
            await super().put_file(path, content, mode)
        else:
            await files.put(self._container, path, content, mode)

    async def get_file(self, path: str, max_bytes: int) -> tuple[bytes, bool]:
        """The file's first bytes, and whether there are more. Raises Rejected."""
        self._require_alive()
        if self._container.files is not None:
            return await super().get_file(path, max_bytes)
        return await files.get(self._container, path, max_bytes)

    async def snapshot(self) -> str:
        """Keep the files, the agent's processes held still meanwhile. Raises Exhausted, Unavailable."""
        async with self._turn:
            trees = self._reach()
            await self._container.pause()
            try:
                return await asyncio.to_thread(self._snapshots.take, trees)
            finally:
                await self._container.resume()

    async def restore(self, snapshot: str) -> None:
        """As new, with the files of a snapshot. Raises Rejected, Unavailable."""
        self._snapshots.require(snapshot)
        await self.reset()
        await self.fill(snapshot)

    async def fill(self, snapshot: str) -> None:
        """Put the files of a snapshot into this fresh sandbox. Raises Rejected, Exhausted."""
        await asyncio.to_thread(self._snapshots.put_back, snapshot, self._reach())

    async def reset(self) -> None:
        """As new: the container is removed and another made in its place."""
        async with self._turn:
            await self._drop_interpreter()
            await self._container.remove()
            await self._lose_sessions()
            self._container = await self._make()
            self._place = object()

    async def _lose_sessions(self) -> None:
        """The container is gone, and with it what was open inside."""
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            session.lost()
            await session.close()
        await self._close_door()

    @property
    def place(self) -> object:
        """Another object after each reset or restore, and whenever the door was lost."""
        if self._door is not None and self._door.lost:
            self._place = object()
        return self._place

    async def listen(self, port: int) -> socket.socket:
        """A socket that gets what connects to the sandbox's own loopback. Raises Unavailable."""
        self._require_alive()
        if self._container.network >= 0:
            return await listen_inside(self._container.network, port)
        await self._close_door()
        self._door, listener = await Door.open(self._container, port)
        return listener

    async def _shut_door(self) -> None:
        """A door that nobody serves any more is closed before anything else runs."""
        if self._door is not None and self._door.shut:
            await self._close_door()

    async def _close_door(self) -> None:
        if self._door is not None:
            door, self._door = self._door, None
            self._place = object()
            await door.close()

    async def destroy(self) -> None:
        """Kill everything, free everything. Idempotent."""
        if self._destroyed:
            return
        self._destroyed = True
        try:
            await self._container.remove()
            async with self._turn:  # what ran has been told
                await self._drop_interpreter()
                await self._lose_sessions()
        finally:
            self._on_destroyed()


def _dead() -> CommandResult:
    return CommandResult(Outcome.SANDBOX_DIED, error="the sandbox had already died")
