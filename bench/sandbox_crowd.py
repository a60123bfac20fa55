"""Many at once: 200 sandboxes made, used and destroyed together, and what a claim of a warm one costs at its worst.

`sandbox_crowd` is the time until the last of 200 concurrent sandboxes has run one program and is gone, over 200 times a single one
divided by the cores. Nothing is forked ahead for a crowd, so nothing is for the single one either. `against_standby` compares with a single
one that has been forked ahead on another core: it takes less time than processor time, which no crowd can reach. `sandbox_crowd_cpu` is the
processor time of one of the crowd over that of a single one (where the host counts it by cgroup), which says whether they get into each
other's way. `sandbox_claim` is the 99th percentile of claiming a warm sandbox from the pool over the median; nothing
but the claim is inside the measured time.

    python -m bench.sandbox_crowd --crowd 200
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from bench.result import report
from bench.sandbox_cost import Processor, timed
from temper.runtime.errors import Unavailable
from temper.sandbox.engine.base import Command, Limits, Outcome
from temper.sandbox.engine.namespaces import NamespacesBackend
from temper.sandbox.pool import WarmPool

FLOORS = {"sandbox_crowd": (1.5, 1.15), "sandbox_crowd_cpu": (1.5, 1.15), "sandbox_claim": (5.0, 3.0)}
PROGRAM = Command(("/bin/true",))
SINGLE, CROWDS = 40, 3
WARM = 32
CLAIMS = 512
Pair = tuple[float, float]
"""Ours, and what it is compared with; seconds."""


class FromNothing(NamespacesBackend):
    """Without a sandbox forked ahead."""

    STANDS_BY = False


async def use(backend: NamespacesBackend, name: str) -> None:
    limits = Limits()
    sandbox = await backend.create(name, limits)
    result = await sandbox.execute(PROGRAM, limits)
    await sandbox.destroy()
    assert result.outcome is Outcome.OK, result


async def singles(backend: NamespacesBackend) -> float:
    """Seconds of one alone, at its best."""

    async def alone() -> None:
        await use(backend, "one")

    return min([await timed(alone) for _ in range(SINGLE)])


async def crowd(backend: NamespacesBackend, size: int) -> float:
    """Seconds until the last of so many is gone, at its best."""

    async def all_at_once() -> None:
        await asyncio.gather(*(use(backend, f"many-{index}") for index in range(size)))

    return min([await timed(all_at_once) for _ in range(CROWDS)])


async def compare(
    backend: NamespacesBackend, alone: NamespacesBackend, size: int, processor: Processor
) -> tuple[Pair, Pair | None, float]:
    """Times of crowd and ideal; processor times of one in the crowd and of one alone; the crowd over its ideal with standbys."""
    cores = len(os.sched_getaffinity(0))
    spent = [processor.seconds()]
    single = await singles(alone)
    spent.append(processor.seconds())
    together = await crowd(backend, size)
    spent.append(processor.seconds())
    ahead = await singles(backend)
    before, between, after = spent
    cpu = None
    if before is not None and between is not None and after is not None:
        cpu = ((after - between) / CROWDS / size, (between - before) / SINGLE)
    return (together, size * single / cores), cpu, together / (size * ahead / cores)


async def claims(backend: NamespacesBackend) -> Pair:
    """99th percentile and median seconds of a claim."""
    pool = WarmPool(backend, Limits(), WARM)
    filling = asyncio.create_task(pool.fill())
    times: list[float] = []
    while len(times) < CLAIMS:
        while len(pool) < WARM:  # noqa: ASYNC110 - the pool tells nobody that it is full
            await asyncio.sleep(0.001)
        for _ in range(WARM // 2):
            began = time.perf_counter()
            sandbox = pool.take(Limits())
            times.append(time.perf_counter() - began)
            assert sandbox is not None
            await sandbox.destroy()
    filling.cancel()
    await pool.close()
    cuts = statistics.quantiles(times, n=100)
    return cuts[98], cuts[49]


async def main(size: int) -> int:
    load = os.getloadavg()[0]
    processor = Processor()
    with tempfile.TemporaryDirectory() as directory:
        backend = NamespacesBackend(slots=size + 2, state_dir=Path(directory) / "crowd")
        alone = FromNothing(slots=2, state_dir=Path(directory) / "alone")
        try:
            await backend.start()
            await alone.start()
            times, cpu, ahead = await compare(backend, alone, size, processor)
            claim = await claims(backend)
        except Unavailable as error:
            print(error, file=sys.stderr)
            for each in FLOORS:
                tell(each, None, load)
            return 0
        finally:
            await alone.close()
            await backend.close()
    processor.close()
    tell("sandbox_crowd", times, load, against_standby=round(ahead, 3))
    tell("sandbox_crowd_cpu", cpu, load)
    tell("sandbox_claim", claim, load)
    return 0


def tell(name: str, pair: Pair | None, load: float, **more: float) -> None:
    """Print one result."""
    floor, good = FLOORS[name]
    if pair is not None:
        more |= {"ours_ms": round(pair[0] * 1e3, 4), "ideal_ms": round(pair[1] * 1e3, 4)}
    ratio = None if pair is None else pair[0] / pair[1]
    report(name, ratio, floor=floor, good=good, better="lower", load=load, **more)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--crowd", type=int, default=200, help="sandboxes at once")
    sys.exit(uvloop.run(main(parser.parse_args().crowd)))
