"""What a caller has open in one session: programs, streams that wait to be read, watches, snapshots by step."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from temper.runtime.clock import Clock
from temper.runtime.errors import Exhausted, Rejected
from temper.sandbox.engine.base import CommandResult, Sandbox, Session, SessionSpec, Sink
from temper.sandbox.news import News
from temper.sandbox.streams import OutputWindow
from temper.sandbox.timeline import Timeline
from temper.sandbox.watches import Watches

_MOST_STREAMS: Final = 64
_MOST_PROGRAMS: Final = 64


class Desk:
    """See the module. One per session, gone with it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._programs: dict[str, Session] = {}
        self._ends: dict[str, asyncio.Task[None]] = {}
        self._windows: OrderedDict[str, OutputWindow] = OrderedDict()
        self._starting = asyncio.Lock()
        self._opened = News(clock)
        self.timeline = Timeline()
        """Its snapshots."""
        self.watches = Watches(clock)
        """Its watches of files."""

    async def start(self, sandbox: Sandbox, name: str, spec: SessionSpec, *, stream: bool) -> Session:
        """The program of this name, started unless it is there. Raises Rejected, Exhausted, Unavailable."""
        async with self._starting:
            if name in self._programs:
                return self._programs[name]
            if len(self._programs) >= _MOST_PROGRAMS:
                raise Exhausted(f"{_MOST_PROGRAMS} programs are open", hint="close one")
            window = self._open(name) if stream else None
            try:
                program = await sandbox.open_session(spec, window.sink if window else None)
            except BaseException:
                self._windows.pop(name, None)
                raise
            self._programs[name] = program
            if window is not None:
                self._ends[name] = asyncio.create_task(_end_with(program, window))
            return program

    def program(self, name: str) -> Session:
        """An open program. Raises Rejected."""
        if name not in self._programs:
            raise Rejected(f"no program {name!r} is open", field="program_id", hint="start it")
        return self._programs[name]

    def named(self, session: str) -> str:
        """The caller's name of the program that the sandbox knows as `session`."""
        return next((name for name, each in self._programs.items() if each.id == session), "")

    async def close(self, name: str) -> CommandResult:
        """End a program with its tree. Raises Rejected."""
        result = await self.program(name).close()
        self._programs.pop(name, None)
        return result

    @asynccontextmanager
    async def streaming(self, name: str, *, wanted: bool) -> AsyncIterator[Sink | None]:
        """A sink for one command, which `read` reads from; None if it is not wanted."""
        if not wanted:
            yield None
            return
        window = self._open(name)
        try:
            yield window.sink
        finally:
            window.end()

    def _open(self, name: str) -> OutputWindow:
        while len(self._windows) >= _MOST_STREAMS:
            done = next((key for key, each in self._windows.items() if each.ended), None)
            if done is None:
                raise Exhausted(f"{_MOST_STREAMS} streams are open", hint="close a program")
            del self._windows[done]
        self._windows[name] = OutputWindow(self._clock)
        self._opened.tell()
        return self._windows[name]

    async def window(self, name: str, wait_s: float) -> OutputWindow:
        """A stream; a reader may come before what it reads, within `wait_s`. Raises Rejected."""
        await self._opened.until(lambda: name in self._windows, wait_s)
        if name not in self._windows:
            raise Rejected(f"nothing streams as {name!r}", field="stream_id", hint="start it with stream")
        return self._windows[name]

    def hurry(self) -> None:
        """Have no reader wait for what may come."""
        self._opened.hurry()
        for window in self._windows.values():
            window.hurry()
        self.watches.hurry()

    def clear(self) -> None:
        """The sandbox began anew: its programs are gone. What they wrote can still be read."""
        for task in self._ends.values():
            task.cancel()
        for window in self._windows.values():
            window.end()
        self._ends.clear()
        self._programs.clear()
        self.watches.clear()


async def _end_with(program: Session, window: OutputWindow) -> None:
    """The stream of a program ends when the program and all that was in its pipes has been taken."""
    await program.wait()
    window.end()
