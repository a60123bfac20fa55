"""What this host has promised to its sandboxes, and whether one more promise can be kept. Pure."""

import os
from pathlib import Path
from typing import Final

from temper.runtime.errors import Exhausted, Rejected
from temper.sandbox.engine.base import Guarantee

_NAMES: Final = ("memory_bytes", "cpus", "pids")


class Promises:
    """The sum of guarantees against what there is. Disk counts as memory: files of a sandbox live there."""

    def __init__(self, capacity: Guarantee) -> None:
        self._capacity = capacity
        self._given: dict[str, Guarantee] = {}

    def give(self, name: str, wanted: Guarantee) -> None:
        """Promise it to a session. Raises Exhausted when it is taken now, Rejected when it never fits."""
        for field in _NAMES:
            have, want = _amount(self._capacity, field), _amount(wanted, field)
            taken = sum(_amount(each, field) for each in self._given.values())
            if want > have:
                raise Rejected(
                    f"this host has {have:g} of {field}, not {want:g}",
                    field=f"guarantee.{field}",
                    hint="ask another host, or for less",
                )
            if want and taken + want > have:
                raise Exhausted(
                    f"{have - taken:g} of {field} are not promised yet, not {want:g}",
                    field=f"guarantee.{field}",
                    hint="retry when a sandbox is released",
                )
        if wanted != Guarantee():
            self._given[name] = wanted

    def release(self, name: str) -> None:
        """The session is gone. Idempotent."""
        self._given.pop(name, None)


def _amount(guarantee: Guarantee, field: str) -> float:
    extra = guarantee.disk_bytes if field == "memory_bytes" else 0
    return getattr(guarantee, field) + extra


def of_this_machine() -> Guarantee:
    """All that this machine could promise."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cpus = len(os.sched_getaffinity(0))
    return Guarantee(memory, float(cpus), int(Path("/proc/sys/kernel/pid_max").read_text()))
