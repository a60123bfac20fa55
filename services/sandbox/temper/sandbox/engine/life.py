"""One life in one place: what the host holds of a sandbox from its first process to its last.

A sandbox that is reset begins another life, in another place if one is ready, while the old one is still being ended.
"""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from temper.runtime.errors import Unavailable
from temper.sandbox.engine.channel import INTERPRETER, Interpreter
from temper.sandbox.engine.files import Files
from temper.sandbox.engine.groups import Group
from temper.sandbox.engine.link import Link
from temper.sandbox.engine.sessions import LaunchedSession
from temper.sandbox.engine.watch import Meter, ReportedMeter

READY_S: Final = 20.0
KILL_S: Final = 10.0
_PROMPT_S: Final = 0.1
"""Seconds after which processes that are killed and still there get more processor time than their share."""


@dataclass(frozen=True, slots=True)
class Place:
    """A slot with a process in it that becomes, or already is, process 1 of a sandbox."""

    control: socket.socket
    """To that process."""
    owner: int | None
    """Uid of files; None where the host cannot or need not give them away."""
    group: Group | None
    """Its control group."""
    again: Callable[[], Awaitable["Place"]]
    """The same slot with a new process, once the old one is dead. Raises Unavailable."""
    give_back: Callable[[bool], None]
    """Free the slot; False if a process in it would not die, and then it is not used again."""


class Life:
    """See the module."""

    def __init__(self, place: Place, *, isolated: bool) -> None:
        reported = ReportedMeter()
        self.place = place
        self.meter: Meter = place.group or reported
        """Counters."""
        self.link = Link(place.control, reported)
        """To process 1."""
        self.files: Files | None = None
        """Its trees, once it is ready and until it ends."""
        self.interpreter: Interpreter | None = None
        """Its persistent Python, once it was asked for."""
        self.sessions: dict[str, LaunchedSession] = {}
        """What was opened and not closed."""
        self._isolated = isolated
        self._ended = False

    async def ready(self, shared: Sequence[str]) -> None:
        """Wait until it is closed off. Raises Unavailable with the kernel's reason."""
        expected = self.link.expect("ready")
        await asyncio.wait({expected, self.link.died}, timeout=READY_S, return_when=asyncio.FIRST_COMPLETED)
        if not expected.done() or expected.result()["event"] == "failed":
            reason = expected.result()["error"] if expected.done() else "it died on the way"
            raise Unavailable(f"cannot set up a sandbox: {reason}")
        roots = dict(zip(shared, self.link.directories, strict=True))
        self.files = Files(roots, self.place.owner, sized=self._isolated)

    async def kill(self, *, spare: bool) -> None:
        """Kill all processes, with `spare` all outside of sessions. Kills process 1 if it does not answer."""
        killed = self.link.expect("killed")
        self.link.send({"op": "kill", "spare": spare})
        await self._wait_for(killed, self.link.died)
        if not killed.done():
            self.link.forget("killed")
            self.link.kill()

    async def _wait_for(self, *news: "asyncio.Future[Any]") -> None:
        """Until the killed are gone, or have had KILL_S for it."""
        done, _ = await asyncio.wait(news, timeout=_PROMPT_S, return_when=asyncio.FIRST_COMPLETED)
        if done:
            return
        group = self.place.group
        with group.unthrottled() if group is not None else contextlib.nullcontext():
            await asyncio.wait(news, timeout=KILL_S, return_when=asyncio.FIRST_COMPLETED)

    def drop_interpreter(self) -> bool:
        """Forget the interpreter; True if there was one."""
        if self.interpreter is None:
            return False
        self.interpreter.close()
        self.interpreter = None
        self.link.forget(INTERPRETER)
        return True

    def begin_to_end(self) -> None:
        """Have it die while something else is done. Where no namespace dies with process 1, `end` does all of it."""
        if self._isolated:
            self.link.kill()

    async def end(self) -> bool:
        """Kill everything, free everything but the slot; whether the last process is gone. Idempotent."""
        if self._ended:
            return self.link.died.done()
        self._ended = True
        if not self._isolated:  # no namespace dies with init: sweep first
            await self.kill(spare=False)
        self.link.kill()
        await self._wait_for(self.link.died)
        for session in self.sessions.values():
            session.lost()
        self.sessions = {}
        self.drop_interpreter()
        if self.files is not None:
            self.files.close()
            self.files = None
        self.link.close()
        return self.link.died.done()
