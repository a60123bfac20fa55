"""What crosses the seam with a program that outlives a call: sessions, terminals, processes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from temper.sandbox.engine.command import CommandResult, Limits, Sink

_NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """How a session begins. Example: `SessionSpec()` is a shell; `SessionSpec(("top",), terminal=True)` a terminal."""

    argv: tuple[str, ...] = ()
    """Program and arguments; none for a shell that takes scripts by `run` and keeps directory and variables."""
    terminal: bool = False
    """Give it a terminal; output is then one stream, with its escape sequences."""
    rows: int = 24
    """Height of the terminal."""
    columns: int = 80
    """Width of the terminal."""
    stdin: bool = False
    """Keep standard input open for `write`; without it, and without a terminal, it is /dev/null."""
    env: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    """Variables added to the sandbox's own."""
    cwd: str = ""
    """Directory inside the sandbox; empty is its work directory."""
    output_bytes: int = 8 << 20
    """Bytes kept of each stream for the final result: head and tail."""


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """A process inside a sandbox. Example: `ProcessInfo(7, 1, ("sleep", "60"), "S", started_s=12.5)`."""

    pid: int
    """As the sandbox numbers it."""
    parent: int
    """Its parent; 1 for one whose parent has gone."""
    argv: tuple[str, ...]
    """Program and arguments, from the kernel; the process itself may have written over them."""
    state: str
    """The kernel's letter: R, S, D, T, Z. Source: proc_pid_stat(5)."""
    started_s: float = 0.0
    """Seconds since it began."""
    cpu_s: float = 0.0
    """CPU seconds so far."""
    memory_bytes: int = 0
    """Resident memory."""
    session: str = ""
    """Id of the session whose tree it is in; empty outside of any."""


class Session(Protocol):
    """A program that outlives the call that started it. Sessions of one sandbox are independent of each other."""

    @property
    def id(self) -> str:
        """Unique in its sandbox."""
        ...

    @property
    def pid(self) -> int:
        """Its first process, as the sandbox numbers it."""
        ...

    @property
    def alive(self) -> bool:
        """Whether its first process runs."""
        ...

    async def run(self, script: str, limits: Limits, sink: Sink | None = None) -> CommandResult:
        """Run a script in a shell session and wait for exactly its exit status. At a limit the session ends.

        Rejected in a session that is no shell. A script that ends the shell gives the shell's status.
        """
        ...

    async def write(self, data: bytes) -> None:
        """Type; waits while the program does not read. Rejected without standard input, Unavailable at its end."""
        ...

    async def resize(self, rows: int, columns: int) -> None:
        """Change the size of the terminal; the program is told. Rejected without a terminal."""
        ...

    async def signal(self, number: int) -> None:
        """Send a signal to every process of the session's tree."""
        ...

    async def wait(self) -> CommandResult:
        """Its end, with exit code or signal and the output that was kept."""
        ...

    async def close(self, grace_s: float = 0.2) -> CommandResult:
        """Hang up, TERM, then KILL its whole tree. Idempotent."""
        ...
