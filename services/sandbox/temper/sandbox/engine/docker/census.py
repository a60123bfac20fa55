"""Who of a container's processes is the agent's, seen from the host."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple


class _Row(NamedTuple):
    """A process: its parent on this host, its pid in its own container, its uid, its state."""

    parent: int
    inner: int
    uid: int
    state: str


def agents(members: Iterable[str], uid: int, spared: frozenset[int]) -> list[int]:
    """Pids on this host of those with that uid, without zombies, and without `spared` (as the container numbers them) and all below."""
    rows = {int(pid): row for pid in members if (row := _row(pid)) is not None}
    left_out = {pid for pid, row in rows.items() if row.inner in spared}
    while left_out and (below := {pid for pid, row in rows.items() if row.parent in left_out} - left_out):
        left_out |= below
    return [pid for pid, row in rows.items() if row.uid == uid and row.state != "Z" and pid not in left_out]


def _row(pid: str) -> _Row | None:
    """What the kernel says; None once it is gone. Source: proc_pid_status(5)."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return None
    told = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return _Row(
        int(told["PPid"]),
        int(told["NSpid"].split()[-1]),
        int(told["Uid"].split()[0]),
        told["State"].strip()[0],
    )
