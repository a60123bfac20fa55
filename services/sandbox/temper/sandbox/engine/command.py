"""What crosses the seam with a command: limits, the command, its output as it comes, its end and the evidence."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

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


class Stream(StrEnum):
    """Which output a chunk belongs to. A terminal has one only."""

    STDOUT = "stdout"
    STDERR = "stderr"


Sink = Callable[[Stream, bytes], Awaitable[None]]
"""Takes raw chunks as they come. No more is read from the program until it returns, so a slow one slows the program."""


@dataclass(frozen=True, slots=True)
class Guarantee:
    """What a sandbox is sure to have, beside what it is killed or held back at. Example: `Guarantee(memory_bytes=1 << 30)`.

    The host takes no more sandboxes than it can keep these promises for; 0 promises nothing and is always taken.
    """

    memory_bytes: int = 0
    """Reclaimed from others first; disk counts as memory where files live in memory."""
    cpus: float = 0.0
    """Cores when everybody wants some: a weight, beside the bandwidth of `Limits.cpus`."""
    pids: int = 0
    """Processes and threads out of the host's own table."""
    disk_bytes: int = 0
    """Bytes of writable disk."""


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
    inodes: int = 65_536
    """Files and directories of /work, and again of /tmp; more is ENOSPC."""
    open_files: int = 1024
    """Descriptors of one process."""
    file_bytes: int = 1 << 30
    """Size of one file."""
    grace_s: float = 0.2
    """Seconds between TERM and KILL at a limit."""
    guarantee: Guarantee = Guarantee()
    """The other number of each resource: what is promised."""


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
