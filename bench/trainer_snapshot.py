"""What a snapshot costs a training step: the copy that training waits for; writing and verifying happen beside it.

    stall      the copy of weights, optimizer and RNG / a step of the quick start's size; CPU time of this process, in turns

The whole snapshot (write, read back, compare) is timed as well and reported as a share of a step.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time

import torch

from bench.result import report
from bench.trainer_step import CONFIG, LR, make_batch
from temper.runtime.blobs import BlobStore
from temper.trainer.algorithms import algorithm
from temper.trainer.engine.base import OptimizerSettings
from temper.trainer.engine.torch.engine import TorchEngine
from temper.trainer.snapshot import Snapshot, Snapshots


def measure(turns: int, directory: str) -> tuple[list[float], list[float], int]:
    """(stall / step, whole snapshot / step) per turn, and bytes of a snapshot; the first turn warms and is left out."""
    engine, batch, chosen = TorchEngine(), make_batch(), algorithm("grpo")
    engine.build(CONFIG, seed=0)
    settings = chosen.settings({}, {}, max_staleness=1)
    snapshots = Snapshots(BlobStore(f"file://{directory}"), "bench")
    stalls: list[float] = []
    wholes: list[float] = []
    size = 0
    for turn in range(turns + 1):
        begun = time.process_time()
        engine.step(batch, chosen, settings, OptimizerSettings(lr=LR))
        stepped = time.process_time()
        state = engine.snapshot()
        copied = time.process_time()
        asyncio.run(snapshots.save(Snapshot(turn, state, CONFIG, {})))
        saved = time.process_time()
        size = sum(map(len, state.files.values()))
        if turn:
            stalls.append((copied - stepped) / (stepped - begun))
            wholes.append((saved - stepped) / (stepped - begun))
    return stalls, wholes, size


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=9, help="measured steps")
    turns = parser.parse_args().turns
    load = os.getloadavg()[0]
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        stalls, wholes, size = measure(turns, directory)
    report(
        "trainer_snapshot_stall",
        statistics.median(stalls),
        floor=0.1,
        good=0.03,
        better="lower",
        load=load,
        whole=round(statistics.median(wholes), 4),
        bytes=size,
    )


if __name__ == "__main__":
    main()
