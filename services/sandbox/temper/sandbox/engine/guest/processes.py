# ruff: noqa: PTH123, PTH208 - pathlib would lie in every sandbox's memory for nothing
"""Processes as the kernel shows them in /proc: who is whose child, what runs, and ending whole trees."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_ARGUMENTS: Final = 4096
_STILL_TRIES: Final = 200
_STILL_PAUSE_S: Final = 0.001


def table() -> dict[int, list[bytes]]:
    """Pid to the fields of proc_pid_stat(5) from the state on; zombies excluded."""
    found: dict[int, list[bytes]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
                if fields[0] != b"Z":
                    found[int(name)] = fields
    return found


def below(ancestors: Iterable[int], rows: Mapping[int, list[bytes]]) -> set[int]:
    """Everything that descends from one of these, without themselves."""
    first = set(ancestors)
    found = set(first)
    while grown := {pid for pid, fields in rows.items() if int(fields[1]) in found} - found:
        found |= grown
    return found - first


def childless() -> bool:
    """Whether this process has no child, dead ones that nobody has waited for included. One question to the kernel, no race."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def send(pids: Iterable[int], which: int) -> None:
    """Signal each one that is still there, the eldest first: a parent that sees its child killed would end in its own way."""
    for pid in sorted(pids):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, which)


def freeze(choose: Callable[[dict[int, list[bytes]]], set[int]]) -> set[int]:
    """Stop all that `choose` picks from the table, within bounds until none of them runs or is new; returns them.

    What stands still already is left out.
    """
    stopped: set[int] = set()
    for _ in range(_STILL_TRIES):
        rows = table()
        running = {pid for pid in choose(rows) if rows[pid][0] not in b"Tt"}
        if not running:
            break
        stopped |= running
        send(running, signal.SIGSTOP)
        time.sleep(_STILL_PAUSE_S)
    return stopped


def describe(pid: int, fields: list[bytes]) -> dict[str, Any]:
    """One row of a process list, as it goes over the wire."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read(_ARGUMENTS).split(b"\0")
    except OSError:
        words = []
    return {
        "pid": pid,
        "parent": int(fields[1]),
        "argv": [word.decode(errors="replace") for word in words if word],
        "state": fields[0].decode(),
        "started_s": max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / _TICKS),
        "cpu_s": (int(fields[11]) + int(fields[12])) / _TICKS,
        "memory_bytes": int(fields[21]) * _PAGE,
    }
