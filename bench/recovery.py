"""What a kill -9 costs: seconds from the kill to the first new committed step, in steps.

A short stretch of the quick start (two domains, no evaluation) runs on a real embedded platform. One process after another is killed in
mid-job, and the platform starts it again. A step is committed when its record is in the event log; its time is the record's own,
read at the end from ClickHouse, so nothing is missed while a part that answers questions is away.

    trainer, rollout, sandbox, scheduler, nats-server    from the kill to the next committed step
    qa, telemetry                                        longest gap between two steps around the kill: no step needs them

Each is divided by the median step time before its kill. What nobody misses gives about one: the step that was under way.
The longest gap is given for all (`gap_steps`): a trainer may still have groups when the rollout worker dies, and wait later.
There is no bound: a table on standard error, and one line for each service.

    python -m bench.recovery                      all of them
    python -m bench.recovery --only trainer qa    some of them
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from bench.result import report
from temper.client.platform.layout import DataDir
from temper.client.platform.supervisor import Platform
from temper.client.runs.submit import prepare, submit
from temper.client.sdk.aio import AsyncClient
from temper.runtime.errors import TemperError

ROOT = Path(__file__).parents[1]
NEEDED = ("trainer", "rollout", "sandbox", "scheduler", "nats-server")
BESIDE = ("qa", "telemetry")
LOOK_S = 0.1
LIMIT_S = 180.0  # longest wait for anything
LEAD = 6  # steps between two kills: enough for a median and for gaps that come late
T = TypeVar("T")

JOB = """\
name = "recovery"
policy = {{ checkpoint = "{checkpoint}" }}
rollout = {{ max_tokens_per_turn = 40, max_turns = 3, max_tokens = 192, group_deadline_s = 30.0 }}
eval = {{ before = false, after = false }}

[[domain]]
name = "calc"
env = "calc"

[[domain]]
name = "products"
env = "rg/products"
params = {{ min_terms = 2, max_terms = 2, min_digits = 2, max_digits = 3 }}

[[phase]]
name = "rl"
algorithm = "grpo"
steps = 10000
groups_per_step = 4
samples_per_task = 4
snapshot_every = 5
optimizer = {{ lr = 3e-4 }}
"""


@dataclass(frozen=True, slots=True)
class Kill:
    """One process was killed."""

    name: str
    at: float
    """Unix seconds."""
    before: float
    """Start of the undisturbed steps before it."""
    until: float
    """End of the steps that may still show it."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a kill cost."""

    name: str
    seconds: float
    gap_s: float
    """Longest time between two steps around the kill."""
    step_s: float
    """Median step time before."""

    @property
    def steps(self) -> float:
        """The published number."""
        return (self.seconds if self.name in NEEDED else self.gap_s) / self.step_s


class Trial:
    """A job on a platform, of which parts are killed."""

    def __init__(self, platform: Platform, client: AsyncClient, job_id: str) -> None:
        self._platform, self._client, self._job = platform, client, job_id

    async def kill(self, name: str) -> Kill:
        """Let the job run, kill a process, wait for its successor and let the job run again."""
        before = time.time()
        await self._steps()
        pid = self._pid(name)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        at = time.time()
        await until(lambda: self._replaced(name, pid), f"a new {name}")
        await self._steps()
        return Kill(name, at, before, time.time())

    async def committed(self) -> list[float]:
        """Unix seconds of every step."""
        sql = f"SELECT toFloat64(finished_at) FROM steps FINAL WHERE job_id = '{self._job}' ORDER BY step"
        table = await self._client.query.sql(sql, fresh=True, max_rows=100_000)
        return [float(row[0]) for row in table.rows]

    async def _steps(self) -> None:
        """Wait for some steps."""
        wanted = await until(self._step, "the job's state") + LEAD

        async def reached() -> bool:
            return (await self._step() or 0) >= wanted

        await until(reached, f"step {wanted}")

    async def _step(self) -> int | None:
        try:
            job = await self._client.jobs.get(self._job)
        except TemperError:
            return None  # who answers is the one that was killed
        if job.ended:
            raise SystemExit(f"the job has ended: {job.state} {job.reason}")
        return job.progress.step

    async def _replaced(self, name: str, old: int) -> bool:
        return self._pid(name) not in (None, old)

    def _pid(self, name: str) -> int | None:
        return self._platform.state()["processes"][name]


async def until(look: Callable[[], Awaitable[T | None]], what: str) -> T:
    """Poll until `look` gives something true (or a number)."""
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        found = await look()
        if found is not None and found is not False:
            return found
        await asyncio.sleep(LOOK_S)
    raise SystemExit(f"waited {LIMIT_S:.0f} s for {what}")


def measure(kill: Kill, committed: Sequence[float]) -> Recovery:
    """From the times of all steps."""
    around = [at for at in committed if kill.before <= at <= kill.until]
    gaps = [(last, at) for last, at in itertools.pairwise(around)]
    quiet = [at - last for last, at in gaps if at <= kill.at]
    return Recovery(
        kill.name,
        seconds=next(at for at in around if at > kill.at) - kill.at,
        gap_s=max(at - last for last, at in gaps if at > kill.at),
        step_s=statistics.median(quiet),
    )


async def recoveries(names: Sequence[str]) -> list[Recovery]:
    """Kill each once."""
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="temper-bench-")))
        platform = Platform(DataDir.at(directory / "data"), say=lambda line: print(line, file=sys.stderr))
        client = AsyncClient(await platform.start())
        stack.push_async_callback(platform.stop)
        stack.push_async_callback(client.close)
        path = directory / "job.toml"
        path.write_text(JOB.format(checkpoint=ROOT / "examples/checkpoints/warmstart"))
        job = await submit(client, prepare(path, [], 0))
        trial = Trial(platform, client, job.id)
        kills: list[Kill] = []
        for name in names:
            kills.append(await trial.kill(name))
            print(f"killed {name}", file=sys.stderr)
        committed = await trial.committed()
        await client.jobs.cancel(job.id)
        return [measure(kill, committed) for kill in kills]


def main() -> None:
    """A table and one line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=NEEDED + BESIDE, default=NEEDED + BESIDE)
    given = parser.parse_args()
    load = os.getloadavg()[0]
    found = asyncio.run(recoveries(given.only))
    print(f"\n{'killed':<14}{'seconds':>9}{'steps':>8}{'gap, s':>9}{'step, s':>9}", file=sys.stderr)
    for each in found:
        cells = f"{each.seconds:>9.2f}{each.steps:>8.2f}{each.gap_s:>9.2f}{each.step_s:>9.2f}"
        print(f"{each.name:<14}{cells}", file=sys.stderr)
    for each in found:
        report(
            f"recovery_{each.name}",
            each.steps,
            floor=None,
            good=None,
            better="lower",
            load=load,
            seconds=round(each.seconds, 3),
            gap_steps=round(each.gap_s / each.step_s, 3),
            step_s=round(each.step_s, 3),
        )


if __name__ == "__main__":
    main()
