"""A sandbox made by the launcher, seen from the host: commands, limits, files, end.

    control socket   to init: spawn, signal, kill; events come back
    channel          to the interpreter: code in, "ended" back; untrusted
    pipes            output, straight from the command to the host
    pidfd            readable when the last process is gone

Commands of one sandbox run one at a time under a lock. Every wait ends: at the command's end, at a limit, or when the
sandbox dies.
"""

import asyncio
import signal
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Final

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
from temper.sandbox.engine.channel import INTERPRETER, Interpreter
from temper.sandbox.engine.door import listen_inside
from temper.sandbox.engine.filecalls import FileCalls
from temper.sandbox.engine.files import Files
from temper.sandbox.engine.guest import wire
from temper.sandbox.engine.life import KILL_S, Life, Place
from temper.sandbox.engine.running import Run, terminate
from temper.sandbox.engine.sessions import open_session
from temper.sandbox.engine.snapshots import Snapshots
from temper.sandbox.engine.verdict import Ending, judge
from temper.sandbox.engine.watch import Watch

_ANSWER_S: Final = 10.0
_MOST_SESSIONS: Final = 64
_END_OF_TEXT: Final = "the interpreter was killed"


class LaunchedSandbox(FileCalls):
    """See the module. `succeed` gives a place where the next life has begun already, or None."""

    def __init__(
        self,
        place: Place,
        shared: tuple[str, ...],
        *,
        isolated: bool,
        snapshots: Snapshots,
        succeed: Callable[[], Place | None],
    ) -> None:
        self._life = Life(place, isolated=isolated)
        self._shared = shared
        self._isolated = isolated
        self._snapshots = snapshots
        self._succeed = succeed
        self._numbers = 0
        self._opened = 0
        self._turn = asyncio.Lock()
        self._destroyed = False

    async def ready(self) -> None:
        """Wait until the sandbox is closed off. Raises Unavailable with the kernel's reason."""
        try:
            await self._life.ready(self._shared)
        except Unavailable:
            await self.destroy()
            raise

    @property
    def alive(self) -> bool:
        """Whether a command can still run here."""
        return not self._destroyed and not self._life.link.died.done()

    @property
    def place(self) -> object:
        """Another object after each reset or restore."""
        return self._life.link

    async def listen(self, port: int) -> socket.socket:
        """A socket that listens on the sandbox's own loopback, held out here. Raises Unavailable."""
        if not self.alive:
            raise Unavailable("the sandbox is gone")
        return await listen_inside(self._life.link.pidfd, port)

    async def execute(self, command: Command, limits: Limits, sink: Sink | None = None) -> CommandResult:
        """Run a program to its end or its limit; background children it leaves live on."""
        async with self._turn:
            return await self._execute(command, limits, sink) if self.alive else _dead()

    async def _execute(self, command: Command, limits: Limits, sink: Sink | None) -> CommandResult:
        self._numbers += 1
        run = Run(
            self._life.link,
            self._numbers,
            Watch(self._life.link.died, self._life.meter, limits),
            limits,
            sink,
        )
        number, lost = self._numbers, False

        async def enforce(ending: Ending) -> None:
            nonlocal lost
            await self._enforce(ending, number, run.ended, limits)
            lost = ending not in {Ending.FINISHED, Ending.DIED} and self._life.drop_interpreter()

        result = await run.until_its_end(command, enforce, self._judge)
        return replace(result, interpreter_lost=lost)

    async def python(self, code: str, limits: Limits) -> CommandResult:
        """Run code in the persistent interpreter, which starts at the first call."""
        async with self._turn:
            return await self._python(code, limits) if self.alive else _dead()

    async def _python(self, code: str, limits: Limits) -> CommandResult:
        watch = Watch(self._life.link.died, self._life.meter, limits)
        interpreter = self._life.interpreter or Interpreter(self._life.link, limits)
        self._life.interpreter = interpreter
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
        result = self._judge(ending, watch.evidence(), buffer.truncated)
        error = _END_OF_TEXT if lost else answered.result()
        if lost:
            self._life.drop_interpreter()
        return replace(result, stdout=buffer.value(), error=error or None, interpreter_lost=lost)

    async def _bury(self, interpreter: Interpreter) -> Ending:
        """The interpreter hung up. End it for good, and find out whether the whole sandbox went with it."""
        self._life.link.send({"op": "signal", "id": INTERPRETER, "signal": int(signal.SIGKILL)})
        awaited = {interpreter.exited, self._life.link.died}
        await asyncio.wait(awaited, timeout=KILL_S, return_when=asyncio.FIRST_COMPLETED)
        return Ending.DIED if self._life.link.died.done() else Ending.FINISHED

    async def _enforce(
        self, ending: Ending, number: int, ended: "asyncio.Future[wire.Message]", limits: Limits
    ) -> None:
        """At a limit: TERM to the command, then KILL to everything but init and the sessions, the interpreter included."""
        if ending in {Ending.FINISHED, Ending.DIED}:
            return
        if ending is not Ending.OUTPUT and limits.grace_s > 0:
            await terminate(self._life.link, {"op": "signal", "id": number}, ended, limits.grace_s)
        await self._life.kill(spare=True)

    async def quiesce(self) -> None:
        """Kill every process of the agent, sessions included; files stay."""
        await self._life.kill(spare=False)
        self._life.drop_interpreter()

    def _judge(self, ending: Ending, evidence: Evidence, truncated: bool) -> CommandResult:
        if self._destroyed and ending is Ending.FINISHED:
            ending = (
                Ending.DIED
            )  # without a namespace to die with, a command is swept before the sandbox ends
        full = self._life.files is not None and self._life.files.full
        outcome = judge(ending, evidence, disk_full=full, truncated=truncated)
        return CommandResult(outcome, truncated=truncated, evidence=evidence)

    async def open_session(self, spec: SessionSpec, sink: Sink | None = None) -> Session:
        """Start a program that outlives this call. Raises Rejected, Unavailable."""
        if not self.alive:
            raise Unavailable("the sandbox is gone")
        self._life.sessions = {name: each for name, each in self._life.sessions.items() if not each.closed}
        if len(self._life.sessions) >= _MOST_SESSIONS:
            raise Exhausted(f"{_MOST_SESSIONS} sessions are open", hint="close one")
        self._opened += 1
        name = f"s{self._opened}"
        session = await open_session(
            self._life.link, name, spec, sink, self._life.place.owner, self._life.meter, self._judge
        )
        self._life.sessions[name] = session
        return session

    async def list_processes(self) -> list[ProcessInfo]:
        """What runs now. Raises Unavailable."""
        answer = await self._life.link.ask({"op": "list"}, _ANSWER_S)
        return [ProcessInfo(**row | {"argv": tuple(row["argv"])}) for row in answer["processes"]]

    async def signal(self, pid: int, number: int) -> None:
        """Send a signal to one process of the agent. Raises Rejected, Unavailable."""
        if not 0 < number < signal.NSIG:
            raise Rejected(f"no signal {number}", field="signal", hint=f"1 to {signal.NSIG - 1}")
        answer = await self._life.link.ask({"op": "signal_one", "pid": pid, "signal": number}, _ANSWER_S)
        if not answer["known"]:
            raise Rejected(f"no process {pid}", field="pid", hint="list the processes")

    async def snapshot(self) -> str:
        """Keep the files. Raises Exhausted, Unavailable."""
        async with self._turn:
            files = self._reach()
            await self._life.link.ask({"op": "freeze"}, _ANSWER_S)
            try:
                return await asyncio.to_thread(self._snapshots.take, files)
            finally:
                await self._life.link.ask({"op": "thaw"}, _ANSWER_S)

    async def restore(self, snapshot: str) -> None:
        """As new, with the files of a snapshot. Raises Rejected, Unavailable."""
        self._snapshots.require(snapshot)
        await self.reset()
        await self.fill(snapshot)

    async def fill(self, snapshot: str) -> None:
        """Put the files of a snapshot into this fresh sandbox. Raises Rejected, Exhausted."""
        await asyncio.to_thread(self._snapshots.put_back, snapshot, self._reach())

    def _died(self) -> "asyncio.Future[None]":
        return self._life.link.died

    def _reach(self) -> Files:
        if self._life.files is None or not self.alive:
            raise Unavailable("the sandbox is gone")
        return self._life.files

    async def reset(self) -> None:
        """As new: everything killed and discarded, and another life begun, in another slot if one stands by."""
        async with self._turn:
            old = self._life
            old.begin_to_end()
            place = self._succeed()
            if place is None:
                await self._begin_again(old)
                return
            self._life = Life(place, isolated=self._isolated)
            ending = asyncio.create_task(old.end())
            try:
                await self.ready()
            finally:
                old.place.give_back(await ending)
            await self._not_destroyed()

    async def _begin_again(self, old: Life) -> None:
        if not await old.end():
            raise Unavailable("the sandbox would not die, so its place is not used again")
        self._life = Life(await old.place.again(), isolated=self._isolated)
        await self.ready()
        await self._not_destroyed()

    async def _not_destroyed(self) -> None:
        """Whoever destroyed the sandbox meanwhile has ended its old life; this ends the new one."""
        if self._destroyed:
            self._life.place.give_back(await self._life.end())
            raise Unavailable("the sandbox was destroyed while it was reset")

    async def destroy(self) -> None:
        """Kill everything, free everything. Idempotent."""
        if self._destroyed:
            return
        self._destroyed = True
        life, clean = self._life, False
        try:
            clean = await life.end()
        finally:
            life.place.give_back(clean)


def _dead() -> CommandResult:
    return CommandResult(Outcome.SANDBOX_DIED, error="the sandbox had already died")
