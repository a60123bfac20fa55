"""Which rank is at fault when a group is lost. Whoever reports first is mostly a victim: it waited for another one.

In this order: a rank that a signal ended; of those that ended by themselves, the first; of those that live, one that is stopped, or one that
is not waiting for the others.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from temper.trainer.engine.megatron.nursery import TAIL, Nursery

GRACE_S = 2.0
"""Time for last words and stacks."""
WAITING = ("torch/distributed/", "distributed_c10d")
"""Files whose frames mean that a rank waits for another."""


def culprit(nursery: Nursery, pids: Sequence[int], folder: Path) -> str:
    """The rank at fault in words; empty where nobody can be told from the others."""
    codes = _ended(nursery, pids)
    for rank, pid in enumerate(pids):
        code = codes.get(pid, 0)
        if code < 0:
            name = signal.Signals(-code).name
            memory = ", as the kernel does when memory is short" if code == -signal.SIGKILL else ""
            return f"rank {rank} was killed by {name}{memory}"
    if died := _first(folder, len(pids)):
        return f"rank {died[0]} ended: {died[1]}"
    return _standing(pids, folder)


def _ended(nursery: Nursery, pids: Sequence[int]) -> dict[int, int]:
    """Exit codes, after a moment for those that are about to end: sockets of a killed process close before it counts as ended."""
    until = time.monotonic() + GRACE_S
    while True:
        codes = nursery.ended(pids)
        told = len(codes) == len(pids) or any(code < 0 for code in codes.values())
        if told or time.monotonic() > until:
            return codes
        time.sleep(0.01)


def _first(folder: Path, ranks: int) -> tuple[int, str] | None:
    """The rank that said its last words first, and the words."""
    found: list[tuple[float, int]] = []
    for rank in range(ranks):
        with suppress(OSError, ValueError):
            found.append((float((folder / f"rank-{rank}.died").read_text()), rank))
    return (min(found)[1], _words(folder, min(found)[1])) if found else None


def _words(folder: Path, rank: int) -> str:
    path = folder / f"rank-{rank}.log"
    return path.read_text(errors="replace")[-TAIL:] if path.exists() else ""


def _standing(pids: Sequence[int], folder: Path) -> str:
    """Who of the living keeps the others waiting."""
    stopped = [rank for rank, pid in enumerate(pids) if _state(pid) in "Tt"]
    if stopped:
        return f"rank {stopped[0]} is stopped"
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)  # it writes its stack
    stacks = _stacks(folder, len(pids))
    for rank, stack in enumerate(stacks):
        if not any(name in stack for name in WAITING):
            return f"rank {rank} does not wait for the others: {stack or 'it does not say where it is'}"
    return ""


def _state(pid: int) -> str:
    """The kernel's letter for what a process does."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def _stacks(folder: Path, ranks: int) -> list[str]:
    """What ranks wrote about where they are."""
    until = time.monotonic() + GRACE_S
    while True:
        found = [_words(folder, rank).rpartition("(most recent call first)")[2] for rank in range(ranks)]
        if all(found) or time.monotonic() > until:
            return found
        time.sleep(0.02)
