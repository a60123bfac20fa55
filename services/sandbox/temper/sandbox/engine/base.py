"""The protocol of a sandbox backend, and the types that cross it.

A backend makes sandboxes; a sandbox runs commands one at a time and is destroyed. A limit that was hit is a *result*
with evidence, never an exception; exceptions (from `temper.runtime.errors`) mean that the host failed or the caller
asked for something impossible. A container, VM or remote backend is one more implementation of `Backend`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Protocol

_NOTHING: Mapping[str, str] = MappingProxyType({})


class Outcome(StrEnum):
    """How a command ended, judged from the host's own evidence and never from an exit code."""

    OK = "ok"
    TIMED_OUT = "timed_out"
    CPU_EXCEEDED = "cpu_exceeded"
    OOM_KILLED = "oom_killed"
    PIDS_EXCEEDED = "pids_exceeded"
    DISK_FULL = "disk_full"
    OUTPUT_TRUNCATED = "output_truncated"
    SANDBOX_DIED = "sandbox_died"


class Isolation(IntEnum):
    """How well a backend keeps a program in; ordered."""

    NONE = 0
    WEAK = 1
    NAMESPACE = 2
    VM = 3


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a sandbox and of each command in it. Example: `Limits(memory_bytes=256 << 20, wall_s=10)`."""

    memory_bytes: int = 2 << 30
    """Kill limit on the memory of all processes together, tmpfs files included."""
    cpus: float = 1.0
    """Cores, as a bandwidth."""
    pids: int = 256
    """Processes and threads; enough for a compiler."""
    wall_s: float = 60.0
    """Wall-clock seconds of one command."""
    cpu_s: float | None = None
    """CPU seconds of one command, over its whole tree; None for no limit."""
    output_bytes: int = 8 << 20
    """Bytes kept of each of standard output and error: half head, half tail."""
    disk_bytes: int = 256 << 20
    """Bytes of /work, and again of /tmp; more is ENOSPC. They count as memory too."""
    open_files: int = 1024
    """Descriptors of one process."""
    file_bytes: int = 1 << 30
    """Size of one file."""
    grace_s: float = 0.2
    """Seconds between TERM and KILL at a limit."""


@dataclass(frozen=True, slots=True)
class Command:
    """A program to run. Example: `Command(("/bin/sh", "-c", "ls"), cwd="/work")`."""

    argv: tuple[str, ...]
    """Program and arguments. No shell is involved unless it is the program."""
    stdin: bytes = b""
    """Standard input; empty is /dev/null."""
    env: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    """Variables added to the sandbox's own."""
    cwd: str = ""
    """Directory inside the sandbox; empty is its work directory."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the host measured over one command. Example: `Evidence(wall_s=.2, cpu_s=.1, peak_memory_bytes=9000000)`."""

    wall_s: float = 0.0
    """Seconds from start to end."""
    cpu_s: float = 0.0
    """CPU seconds of every process of the sandbox in that time."""
    peak_memory_bytes: int = 0
    """Highest memory of the sandbox during the command; 0 when the host cannot tell."""
    oom_kills: int = 0
    """Processes the kernel killed for memory."""
    refused_forks: int = 0
    """Forks refused at the process limit."""
    throttled_s: float = 0.0
    """Seconds held back by the cpu limit."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    r"""The end of one command. Example: `CommandResult(Outcome.OK, stdout=b"2\n", exit_code=0)`."""

    outcome: Outcome
    """Typed end."""
    stdout: bytes = b""
    """Head and tail, raw."""
    stderr: bytes = b""
    """Head and tail, raw; empty for Python code, whose two streams are one."""
    truncated: bool = False
    """Bytes were cut out of the middle."""
    exit_code: int | None = None
    """Present if it exited."""
    signal: int | None = None
    """Present if a signal ended it."""
    error: str | None = None
    """Why it could not start, or the exception that ended Python code; the agent's own making."""
    interpreter_lost: bool = False
    """The persistent interpreter died with this command; the next code starts afresh."""
    evidence: Evidence = Evidence()
    """Measurements."""


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
    programs: bool = True
    """Whether it runs real programs (the fake one does not)."""
    cgroup_mode: str = "none"
    """Kind of control groups: v2, v1 or none."""
    notes: tuple[str, ...] = ()
    """What a doctor should tell: why a limit is only advisory, what is missing."""


class Sandbox(Protocol):
    """One live sandbox. Commands of one sandbox run one at a time; sandboxes are independent of each other."""

    @property
    def alive(self) -> bool:
        """Whether a command can still run here."""
        ...

    async def execute(self, command: Command, limits: Limits) -> CommandResult:
        """Run a program to its end or its limit; background children it leaves live on."""
        ...

    async def python(self, code: str, limits: Limits) -> CommandResult:
        """Run code in the persistent interpreter, which starts at the first call."""
        ...

    async def put_file(self, path: str, content: bytes, mode: int = 0o644) -> None:
        """Write a file, creating directories. Rejected on a path that leaves the sandbox; Exhausted on a full disk."""
        ...

    async def get_file(self, path: str, max_bytes: int) -> tuple[bytes, bool]:
        """The file's first bytes, and whether there are more. Rejected if it is no regular file."""
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

    async def close(self) -> None:
        """Destroy every sandbox and leave nothing behind."""
        ...
