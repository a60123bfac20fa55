"""Who owns what on a host: a name that stays true after its process is gone, and whether the owner lives.

A pid alone is used again, and means something else in another pid namespace; pid, start time and namespace together do not.
"""

import os
from pathlib import Path


def instance() -> str:
    """Names this process for good, e.g. "4026531836-20728-192421"."""
    return f"{_namespace()}-{os.getpid()}-{started(os.getpid())}"


def started(pid: int) -> int:
    """Start time in clock ticks since boot, 0 for no such process. Source: proc_pid_stat(5), field 22."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return 0


def alive(pid: int, start: int) -> bool:
    """Whether that very process still runs."""
    return start != 0 and started(pid) == start


def is_dead(name: str) -> bool:
    """Whether `name` is an instance of this pid namespace whose process is gone; False where that cannot be known."""
    parts = name.split("-")
    if len(parts) != 3 or not all(part.isdigit() for part in parts):
        return False
    namespace, pid, start = (int(part) for part in parts)
    return namespace == _namespace() and not alive(pid, start)


def _namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino
