"""Many at once: 200 sandboxes made, used and destroyed together, and what a claim of a warm one costs at its worst.

`sandbox_crowd` is the time until the last of 200 concurrent sandboxes has run one program and is gone, over 200 times a single one
divided by the cores. `sandbox_claim` is the 99th percentile of claiming a warm sandbox from the pool over the median; nothing
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
from bench.sandbox_cost import timed
from temper.runtime.errors import Unavailable
from temper.sandbox.engine.base import Command, Limits, Outcome
from temper.sandbox.engine.namespaces import NamespacesBackend
from temper.sandbox.pool import WarmPool

FLOORS = {"sandbox_crowd": (1.5, 1.15), "sandbox_claim": (5.0, 3.0)}
PROGRAM = Command(("/bin/true",))
WARM = 32
CLAIMS = 512


async def use(backend: NamespacesBackend, name: str) -> None:
    limits = Limits()
    sandbox = await backend.create(name, limits)
    result = await sandbox.execute(PROGRAM, limits)
    await sandbox.destroy()
    assert result.outcome is Outcome.OK, result


async def crowd(backend: NamespacesBackend, size: int) -> tuple[float, float]:
    """Seconds of the crowd, and of the ideal one."""

    async def alone() -> None:
        await use(backend, "one")

    single = [await timed(alone) for _ in range(40)]

    async def all_at_once() -> None:
        await asyncio.gather(*(use(backend, f"many-{index}") for index in range(size)))

    together = [await timed(all_at_once) for _ in range(3)]
    cores = len(os.sched_getaffinity(0))
    return min(together), size * min(single) / cores


async def claims(backend: NamespacesBackend) -> tuple[float, float]:
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
    with tempfile.TemporaryDirectory() as directory:
        backend = NamespacesBackend(slots=size + 2, state_dir=Path(directory))
        try:
            await backend.start()
        except Unavailable as error:
            print(error, file=sys.stderr)
            for each, (floor, good) in FLOORS.items():
                report(each, None, floor=floor, good=good, better="lower", load=load)
            return 0
        try:
            measured = {"sandbox_crowd": await crowd(backend, size), "sandbox_claim": await claims(backend)}
        finally:
            await backend.close()
    for each, (ours, ideal) in measured.items():
        floor, good = FLOORS[each]
        times = {"ours_ms": round(ours * 1e3, 4), "ideal_ms": round(ideal * 1e3, 4)}
        report(each, ours / ideal, floor=floor, good=good, better="lower", load=load, **times)
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--crowd", type=int, default=200, help="sandboxes at once")
    sys.exit(uvloop.run(main(parser.parse_args().crowd)))
