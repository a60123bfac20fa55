"""What sessions do alike, whoever keeps their programs: scripts to their exact status, the end, the output that was kept."""

import asyncio
import signal
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final, Protocol

from temper.runtime.errors import Rejected
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
from temper.sandbox.engine.output import CappedBuffer
from temper.sandbox.engine.running import DELIVER_S, Judge, tagged, with_status
from temper.sandbox.engine.verdict import Ending
from temper.sandbox.engine.watch import Meter, Watch

_KILL_S: Final = 10.0


class Reader(Protocol):
    """Output of a session as it comes, kept under a cap."""

    @property
    def buffer(self) -> CappedBuffer:
        """What came since the last `restart`."""
        ...

    def restart(
        self,
        cap: int,
        on_flood: Callable[[], None],
        sink: Callable[[bytes], Awaitable[None]] | None = None,
    ) -> None:
        """Begin the output of another script."""
        ...

    async def finish(self, within_s: float) -> None:
        """Take and deliver what has come. Raises what the sink raised."""
        ...

    def close(self) -> None:
        """Let go. Idempotent."""
        ...


class Conversation(ABC):
    """A session on its host's side. A subclass opens the lines to its keeper and sets `readers`."""

    def __init__(
        self,
        name: str,
        spec: SessionSpec,
        sink: Sink | None,
        meter: Meter,
        judge: Judge,
        ended: "asyncio.Future[wire.Message]",
        died: "asyncio.Future[None]",
    ) -> None:
        """`ended` is done with the keeper's report of the program's end, `died` when the keeper itself is gone."""
        self._spec = spec
        self._sink = sink
        self._meter = meter
        self._judge = judge
        self._ended = ended
        self._died = died
        self._turn = asyncio.Lock()
        self._result: CommandResult | None = None
        self._readers: list[Reader] = []
        self.closed = False
        """Whether its descriptors are given back."""
        self.id = name
        """Unique in its sandbox."""
        self.pid = 0
        """Its first process."""

    @abstractmethod
    def _send_script(self, script: str) -> "tuple[asyncio.Future[int], asyncio.Task[None]]":
        """Hand a script to the shell: its status to come, and the handing over."""

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Type; waits while the program does not read. Raises Rejected, Unavailable."""

    @abstractmethod
    def _set_size(self, rows: int, columns: int) -> None:
        """Change the terminal's size."""

    @abstractmethod
    def _signal_tree(self, number: int) -> None:
        """Send a signal to every process below the keeper."""

    @abstractmethod
    def _kill_tree(self) -> "asyncio.Future[Any]":
        """Kill every process below the keeper; done when the last one is gone."""

    @abstractmethod
    def _let_go(self) -> None:
        """End the keeper, give back what this side holds. Called once."""

    @property
    def alive(self) -> bool:
        """Whether its first process runs."""
        return self._result is None and not self._ended.done() and not self._died.done()

    async def run(self, script: str, limits: Limits, sink: Sink | None = None) -> CommandResult:
        """Run a script to exactly its exit status. At a limit the session ends. Raises Rejected."""
        if self._spec.argv:
            raise Rejected("this session is no shell", field="argv", hint="open one without a program")
        if "\0" in script:
            raise Rejected("a script cannot hold a zero byte", field="script")
        async with self._turn:
            if not self.alive:
                return CommandResult(Outcome.SANDBOX_DIED, error="the session had already ended")
            return await self._run(script, limits, sink)

    async def _run(self, script: str, limits: Limits, sink: Sink | None) -> CommandResult:
        watch = Watch(self._died, self._meter, limits)
        for reader, stream in zip(self._readers, Stream, strict=True):
            reader.restart(limits.output_bytes, watch.flood, tagged(sink or self._sink, stream))
        status, typing = self._send_script(script)
        over = asyncio.create_task(_first(status, self._ended))
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

    async def resize(self, rows: int, columns: int) -> None:
        """Change the size of the terminal. Raises Rejected."""
        if not self._spec.terminal:
            raise Rejected("this session has no terminal", field="terminal")
        require_size(rows, columns)
        if not self.closed:
            self._set_size(rows, columns)

    async def signal(self, number: int) -> None:
        """Send a signal to every process of the tree. Raises Rejected."""
        if not 0 < number < signal.NSIG:
            raise Rejected(f"no signal {number}", field="signal", hint=f"1 to {signal.NSIG - 1}")
        self._signal_tree(number)

    async def wait(self) -> CommandResult:
        """Its end, with exit code or signal and the output that was kept."""
        await asyncio.wait({self._ended, self._died}, return_when=asyncio.FIRST_COMPLETED)
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
            for number in (signal.SIGHUP, signal.SIGTERM):
                self._signal_tree(int(number))
            awaited = {self._ended, self._died}
            await asyncio.wait(awaited, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
        killed = self._kill_tree()
        await asyncio.wait({killed, self._died}, timeout=_KILL_S, return_when=asyncio.FIRST_COMPLETED)

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
        self._let_go()


def require_possible(spec: SessionSpec) -> None:
    """Whether such a session can be. Raises Rejected."""
    if spec.terminal and not spec.argv:
        raise Rejected(
            "a shell for scripts has no terminal", field="argv", hint='name a program: ("/bin/sh",)'
        )
    if spec.terminal:
        require_size(spec.rows, spec.columns)


def require_size(rows: int, columns: int) -> None:
    """Whether a terminal can have this size. Raises Rejected."""
    if not (0 < rows < 1 << 16 and 0 < columns < 1 << 16):
        raise Rejected(f"no terminal has {rows} rows of {columns}", field="rows", hint="1 to 65535")


async def _first(status: "asyncio.Future[int]", ended: "asyncio.Future[wire.Message]") -> bool:
    await asyncio.wait({status, ended}, return_when=asyncio.FIRST_COMPLETED)
    return True
