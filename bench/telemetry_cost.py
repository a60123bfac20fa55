"""Telemetry on / off: wall time of work that fills two cores, while records come at the quick start's rate.

The work is two processes with a fixed amount of arithmetic each; a publisher appends groups, sandbox sessions and steps to a
real broker all the while. Once with the telemetry service (embedded ClickHouse), once without, in turns (off, on, on, off, …),
after the service has opened its database. The ratio is the median over pairs; 1.0 would be a service that costs nothing.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.unit.telemetry import facts

from bench.result import report
from temper.runtime import topology
from temper.runtime.bus.nats import Credentials, NatsBus
from temper.runtime.embedded import NatsServer
from temper.runtime.log.jetstream import JetStreamLog

CORES = 2
GROUPS_PER_S = 10.0  # of 8 samples: what two cores generate
SAMPLES = 8
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "4"))
WORK_S = 8.0
_BURN = """
import sys, time
end = int(sys.argv[1]); total = 0
while end > 0:
    total += end * end % 7; end -= 1
"""


def calibrate() -> int:
    """Turns of the loop that take about `WORK_S` seconds on one idle core."""
    turns = 2_000_000
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", _BURN, str(turns)], check=True)
    return int(turns * WORK_S / (time.perf_counter() - started))


async def work(turns: int) -> float:
    """Wall seconds of the same arithmetic on every core."""
    started = time.perf_counter()
    processes = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", _BURN, str(turns)) for _ in range(CORES)
    ]
    await asyncio.gather(*(process.wait() for process in processes))
    return time.perf_counter() - started


class Publisher:
    """Appends records at a fixed rate for ever."""

    def __init__(self, log: JetStreamLog) -> None:
        self._log = log
        self._number = 0

    async def run(self) -> None:
        due = time.monotonic()
        while True:
            await self._one()
            due += 1 / GROUPS_PER_S
            await asyncio.sleep(max(due - time.monotonic(), 0))

    async def _one(self) -> None:
        number = self._number = self._number + 1
        group = facts.group(number, samples=[facts.sample(sample_index=each) for each in range(SAMPLES)])
        await self._log.append("trajectories", "job-1", group, id=group.group_id)
        for each in range(SAMPLES):
            session = facts.session(number * SAMPLES + each)
            await self._log.append("sandbox", "job-1", session, id=session.session_id)
        if number % 16 == 0:
            step = facts.step(number // 16, groups=tuple(range(number - 16, number)))
            await self._log.append("steps", "job-1", step, id=f"job-1/step/{step.step}")


@asynccontextmanager
async def platform(root: Path) -> AsyncIterator[NatsServer]:
    """A broker with the publisher on it."""
    server = NatsServer(root / "nats")
    await server.start()
    bus = NatsBus(server.url, name="bench/1", credentials=Credentials(token=server.token))
    await bus.connect()
    await topology.apply(bus)
    publishing = asyncio.create_task(Publisher(JetStreamLog(bus)).run())
    try:
        yield server
    finally:
        publishing.cancel()
        await asyncio.gather(publishing, return_exceptions=True)
        await bus.close()
        await server.stop()


@asynccontextmanager
async def telemetry(server: NatsServer, root: Path) -> AsyncIterator[int]:
    """The service, once its database is open; yields its process id."""
    settings = {
        "bus.url": server.url,
        "bus.token_file": server.token_file,
        "blobs.url": (root / "objects").as_uri(),
        "clickhouse.path": root / "clickhouse",
        "grpc.port": 0,
    }
    sets = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "temper.telemetry", *sets, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        await asyncio.sleep(6)  # opening the database is once per platform, not per second
        yield process.pid
    finally:
        process.terminate()
        await process.wait()


def cpu_s(pid: int) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(root: Path) -> tuple[list[float], float]:
    """Ratios of neighbouring pairs, and the service's share of one core."""
    turns, ratios, shares = calibrate(), [], []
    async with platform(root) as server:
        for number in range(ROUNDS):
            off = await work(turns) if number % 2 == 0 else 0.0
            async with telemetry(server, root) as pid:
                before = cpu_s(pid)
                on = await work(turns)
                shares.append((cpu_s(pid) - before) / on)
            off = off or await work(turns)
            ratios.append(on / off)
    return ratios, statistics.median(shares)


def main() -> None:
    """Measure and print the line."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as root:
        ratios, share = asyncio.run(measure(Path(root)))
    report(
        "telemetry on / off",
        statistics.median(ratios),
        floor=1.05,
        good=1.02,
        better="lower",
        load=load,
        pairs=[round(ratio, 3) for ratio in ratios],
        core_share=round(share, 4),
    )


if __name__ == "__main__":
    main()
