"""Asynchronous against synchronous training when rollouts have a long tail.

One job (real scheduler, rollout actor and trainer, see `bench.simulation`) runs with `max_staleness` 0, 1 and 2 on two simulated
devices: a decode batch in which output lengths are log-normal, and an optimizer that takes a fixed time. Steps, groups, seeds
and lengths are the same, so only the schedule differs. Time is simulated: the numbers are exact, repeat on any machine, and
hold no load of this one. What the platform itself costs is therefore not in them; other benchmarks measure that.

    async_over_sync    wall time with staleness 0 / with 1
    async_over_ideal   time in which the busier device is never idle / wall time with staleness 1
    async_idle         share of the trainer's time in which it computes no step, with staleness 1, in its own words
    async_zero_tail    wall time with staleness 0 / with 1 when all lengths are equal

The optimizer is the busier device (about twice the work of the decode batch). With `--balanced` both have the same work: then every
wait is lost, one version of staleness hides only a part of the tail, and the lines have no floor. Outputs that take longer than a
step make samples too old: such groups are dropped and played again, which counts as time.

    python -m bench.async_overlap --steps 40
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import logging
import sys
import tempfile
from pathlib import Path

import structlog

from bench.result import report
from bench.simulation.pace import Loop
from bench.simulation.platform import Simulation
from bench.simulation.workload import Outcome, Workload

TAIL = 0.8  # sigma of the logarithm: of 32 outputs the longest is five times the median
BALANCED_SLOTS = 7
NO_LOAD = 0.0  # simulated time knows none: the numbers are judged on a busy machine too


def simulate(work: Workload) -> Outcome:
    """One run, on a loop and a clock of its own."""
    loop = Loop()
    with (
        tempfile.TemporaryDirectory(prefix="temper-bench-") as name,
        asyncio.Runner(loop_factory=lambda: loop) as runner,
    ):
        outcome = runner.run(Simulation(loop.pace, Path(name), work).run())
    facts = outcome.shares()
    print(f"staleness {work.max_staleness}, tail {work.sigma:g}: {facts}", file=sys.stderr)
    return outcome


def tailed(work: Workload, suffix: str) -> None:
    """Three lines about long tails; with a suffix they are published without a floor."""
    judged = not suffix
    sync, one, two = (simulate(dataclasses.replace(work, max_staleness=n)) for n in (0, 1, 2))
    report(
        f"async_over_sync{suffix}",
        sync.wall_s / one.wall_s,
        floor=1.5 if judged else None,
        good=2.0 if judged else None,
        load=NO_LOAD,
        staleness_2=round(sync.wall_s / two.wall_s, 4),
        sync=sync.shares(),
        asynchronous=one.shares(),
    )
    report(
        f"async_over_ideal{suffix}",
        sync.ideal_s / one.wall_s,
        floor=0.9 if judged else None,
        good=0.95 if judged else None,
        load=NO_LOAD,
        staleness_2=round(sync.ideal_s / two.wall_s, 4),
        ideal_s=round(sync.ideal_s, 1),
        asynchronous_2=two.shares(),
    )
    report(
        f"async_idle{suffix}",
        one.trainer_idle,
        floor=0.1 if judged else None,
        good=0.05 if judged else None,
        better="lower",
        load=NO_LOAD,
        staleness_2=round(two.trainer_idle, 4),
        synchronous=round(sync.trainer_idle, 4),
    )


def main() -> None:
    """Four lines, or three about balanced devices."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--balanced", action="store_true", help="a smaller decode batch: as much work as training"
    )
    given = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    work = Workload(steps=given.steps, seed=given.seed)
    if given.balanced:
        work = dataclasses.replace(work, slots=BALANCED_SLOTS)
    tailed(dataclasses.replace(work, sigma=TAIL), "_balanced" if given.balanced else "")
    if given.balanced:
        return
    even = [simulate(dataclasses.replace(work, max_staleness=n)) for n in (0, 1)]
    report("async_zero_tail", even[0].wall_s / even[1].wall_s, floor=0.97, good=1.0, load=NO_LOAD)


if __name__ == "__main__":
    main()
