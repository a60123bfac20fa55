"""The protocol of a sandbox backend, and the types that cross it.

A backend makes sandboxes; a sandbox runs commands one at a time and is destroyed. A limit that was hit is a *result*
with evidence, never an exception; exceptions (from `temper.runtime.errors`) mean that the host failed or the caller
asked for something impossible. A container, VM or remote backend is one more implementation of `Backend`; what it cannot do
it does not declare in `Capabilities`, and inherits from `lacking` to say so.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final, Protocol

from temper.sandbox.engine.command import (
    Command,
    CommandResult,
    Evidence,
    Guarantee,
    Limits,
    Outcome,
    Sink,
    Stream,
)
from temper.sandbox.engine.entries import Change, Edit, FileInfo, Match
from temper.sandbox.engine.interactive import ProcessInfo, Session, SessionSpec

__all__ = [
    "Backend",
    "Capabilities",
    "Change",
    "Command",
    "CommandResult",
    "Edit",
    "Evidence",
    "FileInfo",
    "Fork",
    "Guarantee",
    "Isolation",
    "Limits",
    "Match",
    "Outcome",
    "ProcessInfo",
    "Sandbox",
    "Session",
    "SessionSpec",
    "Sink",
    "StartCost",
    "Stream",
]

FLAGS: Final = frozenset({"programs", "sessions", "terminals", "streaming", "processes", "trees", "filtered"})
"""Capabilities that are there or not."""


class Isolation(IntEnum):
    """How well a backend keeps a program in; ordered."""

    NONE = 0
    WEAK = 1
    NAMESPACE = 2
    VM = 3


class StartCost(StrEnum):
    """Order of magnitude of making one fresh sandbox."""

    FORK = "fork"
    """Milliseconds."""
    CONTAINER = "container"
    """A good part of a second."""
    MACHINE = "machine"
    """Seconds: a kernel starts, or a cluster schedules."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend offers on this host. Example: `Capabilities("process", Isolation.WEAK)`."""

    backend: str
    """Name."""
    isolation: Isolation
    """How well it keeps a program in."""
    enforced: frozenset[str] = frozenset()
    """Fields of `Limits` that the kernel or the host makes hold."""
    advisory: frozenset[str] = frozenset()
    """Fields that are only sampled or asked for."""
    network_modes: tuple[str, ...] = ("none",)
    """Networks it can give; the first is the default."""
    snapshots: tuple[str, ...] = ()
    """Kinds of snapshot it can take: "files", "processes"."""
    max_fork: int = 0
    """Most sandboxes that one `fork` makes; 0 if it cannot fork."""
    sessions: bool = False
    """Whether `open_session` works: shells that remember, programs in the background."""
    terminals: bool = False
    """Whether a session can have a terminal."""
    streaming: bool = False
    """Whether a sink gets output while the program runs, and holds the program back."""
    processes: bool = False
    """Whether `list_processes` and `signal` work."""
    trees: bool = False
    """Whether files can be listed, moved as trees, patched, searched and watched; single files always work."""
    filtered: bool = False
    """Whether system calls that no program here needs are refused by our own filter, whatever kernel is below."""
    guarantees: frozenset[str] = frozenset()
    """Fields of `Guarantee` that it keeps."""
    start_cost: StartCost = StartCost.FORK
    """What a fresh sandbox costs, by order of magnitude."""
    programs: bool = True
    """Whether it runs real programs (the fake one does not)."""
    cgroup_mode: str = "none"
    """Kind of control groups: v2, v1 or none."""
    notes: tuple[str, ...] = ()
    """What a doctor should tell: why a limit is only advisory, what is missing."""

    def has(self, need: str) -> bool:
        """Whether it offers `need`: a flag's name, "snapshots:files", "network:none", "enforces:pids" or "fork:8"."""
        kind, _, value = need.partition(":")
        match kind:
            case "snapshots":
                return value in self.snapshots
            case "network":
                return value in self.network_modes
            case "enforces":
                return value in self.enforced
            case "fork":
                return value.isdigit() and int(value) <= self.max_fork
            case _:
                return need in FLAGS and bool(getattr(self, need))

    def missing(self, needs: Iterable[str]) -> list[str]:
        """Those of `needs` that it lacks, in order: a task that names one is refused before it starts."""
        return [need for need in needs if not self.has(need)]


class Sandbox(Protocol):
    """One live sandbox. Commands of one sandbox run one at a time; sandboxes are independent of each other."""

    @property
    def alive(self) -> bool:
        """Whether a command can still run here."""
        ...

    async def execute(self, command: Command, limits: Limits, sink: Sink | None = None) -> CommandResult:
        """Run a program to its end or its limit; background children it leaves live on.

        `sink` gets every byte while it runs, beside the capped head and tail of the result.
        """
        ...

    async def python(self, code: str, limits: Limits) -> CommandResult:
        """Run code in the persistent interpreter, which starts at the first call."""
        ...

    async def open_session(self, spec: SessionSpec, sink: Sink | None = None) -> Session:
        """Start a program that outlives this call: a shell that remembers, a terminal, a server in the background."""
        ...

    async def list_processes(self) -> list[ProcessInfo]:
        """What runs now, asked of the kernel; process 1 of the sandbox is not among them."""
        ...

    async def signal(self, pid: int, number: int) -> None:
        """Send a signal to one process by the pid that `list_processes` gave. Rejected if it is not there."""
        ...

    async def put_file(self, path: str, content: bytes, mode: int = 0o644) -> None:
        """Write a file, creating directories. Rejected on a path that leaves the sandbox; Exhausted on a full disk."""
        ...

    async def get_file(self, path: str, max_bytes: int) -> tuple[bytes, bool]:
        """The file's first bytes, and whether there are more. Rejected if it is no regular file."""
        ...

    async def stat(self, path: str) -> FileInfo:
        """What lies at a path; a link is described, not followed. Rejected if nothing is there."""
        ...

    async def list_files(self, path: str, depth: int = 1) -> list[FileInfo]:
        """Entries below a directory, in order of their paths, at most `depth` levels down."""
        ...

    async def make_directory(self, path: str) -> None:
        """Make it with its parents; one that is there is fine."""
        ...

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, a link or, with `recursive`, a tree. Rejected if nothing is there."""
        ...

    async def put_tree(self, path: str, chunks: AsyncIterator[bytes]) -> int:
        """Unpack a tar stream below a directory; returns how many entries. Rejected, whole, on one that would leave it."""
        ...

    def get_tree(self, path: str) -> AsyncIterator[bytes]:
        """A tree as a tar stream; links stay links, nothing outside the tree is read."""
        ...

    async def patch(self, path: str, edits: Sequence[Edit]) -> FileInfo:
        """Replace texts in a file, all or none. Rejected if one is not found or not unique."""
        ...

    async def search(self, pattern: str, path: str = "", limit: int = 100) -> list[Match]:
        """Lines of files below `path` that a regular expression matches, at most `limit`."""
        ...

    def watch(self, path: str) -> AsyncIterator[Change]:
        """Changes below a directory as they happen, until the sandbox ends or the iterator is closed.

        It listens from its first step on, before that step waits for anything.
        """
        ...

    async def snapshot(self) -> str:
        """Keep the files as they are now, the agent's processes held still meanwhile. Returns the snapshot's id."""
        ...

    async def restore(self, snapshot: str) -> None:
        """As new, with the files of a snapshot. Rejected for one that is not known."""
        ...

    async def quiesce(self) -> None:
        """Kill every process of the agent; files stay."""
        ...

    async def reset(self) -> None:
        """As new: processes killed, files gone."""
        ...

    async def destroy(self) -> None:
        """Kill everything, free everything. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class Fork:
    """One outcome of a fork: a sandbox, or why there is none. Example: `Fork("a", None, "all 8 sandboxes are taken")`."""

    name: str
    """As asked."""
    sandbox: Sandbox | None
    """Live, if it worked."""
    error: str = ""
    """Why it did not."""


class Backend(Protocol):
    """A maker of sandboxes. `start` before anything else; `close` destroys what is left."""

    async def start(self) -> None:
        """Reclaim what a killed predecessor left, get ready. Unavailable, saying why, if the host cannot."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """Valid after `start`."""
        ...

    async def create(self, name: str, limits: Limits, network: str = "") -> Sandbox:
        """A fresh sandbox; no network named means the backend's first. Exhausted when all slots are taken; Rejected."""
        ...

    async def fork(self, snapshot: str, names: Sequence[str], limits: Limits) -> list[Fork]:
        """One new sandbox per name with the files of a snapshot, each with an outcome of its own. Rejected if unknown."""
        ...

    async def forget(self, snapshot: str) -> None:
        """Drop a snapshot. Idempotent."""
        ...

    async def close(self) -> None:
        """Destroy every sandbox and leave nothing behind."""
        ...
