"""One GRPO step of the megatron engine against the torch engine's: what rank processes and Megatron cost on a CPU.

    cpu    CPU seconds of a step, of this process and all ranks together / those of the torch engine
    wall   seconds of a step / those of the torch engine (needs as many quiet cores as there are ranks)
    export bytes that ranks have in use at most above what they had before, while weights are published / bytes of the weights, of the
           worst rank

Same weights, samples and settings on every side, fp32, one thread per process, in turns, medians of ratios. Batch and policy are
those of ``trainer_step``; exports are of a policy of 64 MiB, with pieces of 4 MiB. No line has a floor.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bench.result import report
from bench.trainer_step import CONFIG, LR, make_batch, ratio
from temper.trainer.algorithms import algorithm
from temper.trainer.engine.base import Engine, OptimizerSettings
from temper.trainer.engine.megatron import MegatronEngine, MegatronOptions, trainee
from temper.trainer.engine.megatron.nursery import Nursery
from temper.trainer.engine.torch.engine import TorchEngine
from temper.trainer.samples import Batch

LAYOUTS = {
    "one": MegatronOptions(),
    "tensor_2": MegatronOptions(tensor_parallel=2),
    "data_2": MegatronOptions(data_parallel=2),
    "pipeline_2": MegatronOptions(pipeline_parallel=2),
    "context_2": MegatronOptions(context_parallel=2),
}
LARGE = {**CONFIG, "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 6}
PIECE = 4 << 20
TICK = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pids: list[int]) -> float:
    """Of this process and of others."""
    spent = time.process_time()
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        spent += (int(fields[11]) + int(fields[12])) / TICK
    return spent


def side(engine: Engine, batch: Batch) -> Callable[[], None]:
    """A step of it."""
    chosen = algorithm("grpo")
    settings = chosen.settings({}, {"correction": "none"}, max_staleness=1)

    def step() -> None:
        engine.step(batch, chosen, settings, OptimizerSettings(lr=LR))

    return step


def measured(step: Callable[[], None], pids: list[int], repeats: int) -> tuple[float, float]:
    """CPU and wall seconds of some steps: the clock of other processes ticks in hundredths."""
    cpu, wall = cpu_seconds(pids), time.perf_counter()
    for _ in range(repeats):
        step()
    return cpu_seconds(pids) - cpu, time.perf_counter() - wall


def steps(nursery: Nursery, turns: int, repeats: int, load: float) -> None:
    """Every layout beside the torch engine, in turns."""
    batch = make_batch()
    plain = TorchEngine()
    plain.build(CONFIG, seed=0)
    engines: dict[str, MegatronEngine] = {}
    for name, options in LAYOUTS.items():
        engines[name] = MegatronEngine(options, nursery=nursery)
        engines[name].build(CONFIG, seed=0)
    sides = {"torch": (side(plain, batch), [])}
    sides |= {name: (side(engine, batch), engine.pids) for name, engine in engines.items()}
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for turn in range(turns + 1):
        for name, (step, pids) in sides.items():
            found = measured(step, pids, repeats)
            if turn:  # the first one warms
                spent[name].append(found)
    for name, engine in engines.items():
        cpu, wall = (
            ratio([each[k] for each in spent[name]], [each[k] for each in spent["torch"]]) for k in (0, 1)
        )
        report(
            f"megatron_step_{name}",
            cpu,
            floor=None,
            good=None,
            better="lower",
            load=load,
            wall=round(wall, 3),
        )
        engine.close()


def peak(pid: int) -> int:
    """Most bytes a process has had in use."""
    line = next(x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmHWM"))
    return int(line.split()[1]) << 10


def now(pid: int) -> int:
    """Bytes a process has in use; the peak starts again from here."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return peak(pid)


def exports(nursery: Nursery, load: float) -> None:
    """Peak memory of ranks while a large policy goes out."""
    trainee.PIECE = PIECE
    for name in ("one", "tensor_2"):
        engine = MegatronEngine(LAYOUTS[name], nursery=nursery)
        engine.build(LARGE, seed=0)
        sizes = [len(tensor.data) for tensor in engine.export()]
        before: dict[int, int] = {pid: now(pid) for pid in engine.pids}
        for _ in engine.export():
            pass
        grown = max(peak(pid) - was for pid, was in before.items())
        details: dict[str, Any] = {
            "grown_mb": round(grown / 1e6, 1),
            "weights_mb": round(sum(sizes) / 1e6, 1),
        }
        report(
            f"megatron_export_{name}",
            grown / sum(sizes),
            floor=None,
            good=None,
            better="lower",
            load=load,
            **details,
        )
        engine.close()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=5, help="measured turns of each side")
    parser.add_argument("--repeats", type=int, default=4, help="steps of a turn")
    asked = parser.parse_args()
    load = os.getloadavg()[0]
    torch.set_num_threads(1)
    nursery = Nursery(threads=1)
    steps(nursery, asked.turns, asked.repeats, load)
    exports(nursery, load)
    nursery.close()


if __name__ == "__main__":
    main()
