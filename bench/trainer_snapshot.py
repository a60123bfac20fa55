"""What snapshots cost a training step, and what is saved by them after a crash.

    trainer_snapshot_stall      the copy of weights, optimizer and RNG / a step of the quick start's size: all that training waits for
    trainer_snapshot_restore    finding, verifying and taking up the newest snapshot, and the step after it / a step, by level

CPU time of this process, in turns. Hashing, writing and reading back happen beside the steps; they are reported as shares of a step, for the
quick level (files in memory) and the thorough ones (read back, on a disk). The start of a process is not in the second line: `bench.recovery`
measures from `kill -9` to the next committed step with it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from bench.result import report
from bench.trainer_step import CONFIG, LR, make_batch
from temper.runtime.blobs import BlobStore
from temper.trainer.algorithms import algorithm
from temper.trainer.config import SnapshotsConfig
from temper.trainer.engine.base import OptimizerSettings
from temper.trainer.engine.torch.engine import TorchEngine
from temper.trainer.levels import Level, levels, newest
from temper.trainer.snapshot import Snapshot

MEMORY = Path("/dev/shm")


@dataclass(slots=True)
class Shares:
    """CPU seconds over those of the step before, one per turn."""

    stall: list[float] = field(default_factory=list[float])
    write: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    restore: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    size: int = 0
    """Bytes of a snapshot."""


def timed(work: Callable[[], object]) -> float:
    """CPU seconds."""
    begun = time.process_time()
    work()
    return time.process_time() - begun


def measure(turns: int, places: Sequence[Level]) -> Shares:
    """The first turn warms and is left out."""
    engine, batch, chosen = TorchEngine(), make_batch(), algorithm("grpo")
    engine.build(CONFIG, seed=0)
    settings = chosen.settings({}, {}, max_staleness=1)
    found = Shares()

    def step() -> None:
        engine.step(batch, chosen, settings, OptimizerSettings(lr=LR))

    async def take_up(snapshot: Snapshot) -> None:
        engine.restore(snapshot.config, snapshot.engine)

    for turn in range(turns + 1):
        stepped = timed(step)
        copied = timed(engine.snapshot)
        state = engine.snapshot()
        found.size = sum(map(len, state.files.values()))
        if turn:
            found.stall.append(copied / stepped)
        for level in places:
            cut = Snapshot(turn, state, CONFIG, {})
            wrote = timed(lambda level=level, cut=cut: asyncio.run(level.snapshots.save(cut)))
            back = timed(lambda level=level: asyncio.run(newest([level], take_up))) + timed(step)
            if turn:
                found.write.setdefault(level.name, []).append(wrote / stepped)
                found.restore.setdefault(level.name, []).append(back / stepped)
    return found


def medians(shares: dict[str, list[float]]) -> dict[str, float]:
    """One number per level."""
    return {name: round(statistics.median(values), 4) for name, values in shares.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=9, help="measured steps")
    turns = parser.parse_args().turns
    load = os.getloadavg()[0]
    torch.set_num_threads(1)
    with (
        tempfile.TemporaryDirectory() as directory,
        tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as memory,
    ):
        near = SnapshotsConfig(memory_dir=memory, disk_dir=f"{directory}/disk")
        places, _ = levels(BlobStore(f"file://{directory}/objects"), "bench", near)
        found = measure(turns, places)
    report(
        "trainer_snapshot_stall",
        statistics.median(found.stall),
        floor=0.1,
        good=0.03,
        better="lower",
        load=load,
        write=medians(found.write),
        bytes=found.size,
    )
    restore = medians(found.restore)
    report(
        "trainer_snapshot_restore",
        max(restore.values()),
        floor=2.0,
        good=1.3,
        better="lower",
        load=load,
        by_level=restore,
    )


if __name__ == "__main__":
    main()
