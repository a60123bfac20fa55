"""Evidence in, typed outcome out. Pure: no I/O, no clock."""

from dataclasses import dataclass
from enum import StrEnum

from temper.sandbox.engine.base import Evidence, Outcome


class Ending(StrEnum):
    """Why the host stopped waiting for a command."""

    FINISHED = "finished"
    WALL = "wall"
    CPU = "cpu"
    MEMORY = "memory"
    OUTPUT = "output"
    DIED = "died"


@dataclass(frozen=True, slots=True)
class Counters:
    """A reading of a sandbox's meters. Example: `Counters(cpu_s=.12, oom_kills=0)`."""

    cpu_s: float = 0.0
    """CPU seconds since the sandbox began."""
    peak_memory_bytes: int = 0
    """High-water mark since it was last reset."""
    oom_kills: int = 0
    """Kills for memory since the sandbox began."""
    refused_forks: int = 0
    """Forks refused since the sandbox began."""
    throttled_s: float = 0.0
    """Seconds held back since the sandbox began."""


def measure(before: Counters, after: Counters, wall_s: float) -> Evidence:
    """What happened between two readings."""
    return Evidence(
        wall_s=wall_s,
        cpu_s=max(0.0, after.cpu_s - before.cpu_s),
        peak_memory_bytes=after.peak_memory_bytes,
        oom_kills=max(0, after.oom_kills - before.oom_kills),
        refused_forks=max(0, after.refused_forks - before.refused_forks),
        throttled_s=max(0.0, after.throttled_s - before.throttled_s),
    )


def judge(ending: Ending, evidence: Evidence, *, disk_full: bool, truncated: bool) -> Outcome:
    """The outcome, the most telling cause first.

    What the host did itself (a kill at a limit) comes before what the kernel counted; memory comes before the death
    of the sandbox, since running out of memory is how a sandbox usually dies.
    """
    if ending is Ending.WALL:
        return Outcome.TIMED_OUT
    if ending is Ending.CPU:
        return Outcome.CPU_EXCEEDED
    if evidence.oom_kills or ending is Ending.MEMORY:
        return Outcome.OOM_KILLED
    if ending is Ending.DIED:
        return Outcome.SANDBOX_DIED
    if evidence.refused_forks:
        return Outcome.PIDS_EXCEEDED
    if disk_full:
        return Outcome.DISK_FULL
    return Outcome.OUTPUT_TRUNCATED if truncated or ending is Ending.OUTPUT else Outcome.OK
