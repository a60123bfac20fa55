"""A real embedded platform under test: start it, kill parts of it, read its books, look for leftovers."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from temper.client.platform.layout import DataDir
from temper.client.platform.supervisor import Platform
from temper.client.runs.submit import prepare, submit
from temper.client.sdk.aio import AsyncClient
from temper.client.sdk.types import Job, Progress

ROOT = Path(__file__).resolve().parents[2]
CHECKPOINT = ROOT / "examples" / "checkpoints" / "warmstart"
PROCESSES = ("trainer", "rollout", "sandbox", "scheduler", "qa", "telemetry", "nats-server")
PATIENCE_S = 240.0  # no wait of these tests is longer

JOB = """\
name = "faults"
policy = {{ checkpoint = "{checkpoint}" }}
rollout = {{ max_tokens_per_turn = 40, max_turns = 3, max_tokens = 192, group_deadline_s = 30.0 }}
eval = {{ tasks_per_domain = 16 }}

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
steps = {steps}
groups_per_step = 4
samples_per_task = 4
snapshot_every = 2
optimizer = {{ lr = 3e-4 }}
"""


@dataclass
class Running:
    """A platform with a client."""

    platform: Platform
    client: AsyncClient
    said: list[str] = field(default_factory=list)
    hosts: set[int] = field(default_factory=set[int])
    """Process ids that the sandbox service has had."""

    async def submit(self, directory: Path, *, steps: int, **overrides: object) -> str:
        """Create the test's job and give its id."""
        path = directory / "job.toml"
        path.write_text(JOB.format(checkpoint=CHECKPOINT, steps=steps))
        sets = [f"{key.replace('__', '.')}={value}" for key, value in overrides.items()]
        job = await submit(self.client, prepare(path, sets, seed=7))
        return job.id

    async def progress(self, job_id: str) -> Progress:
        """Counters of the job, waiting out a scheduler that is away."""
        return (await self.job(job_id)).progress

    async def job(self, job_id: str) -> Job:
        """The job, waiting out a scheduler that is away."""
        return await until(lambda: self._try(job_id), what=f"an answer about {job_id}")

    async def _try(self, job_id: str) -> Job | None:
        from temper.runtime.errors import TemperError

        try:
            return await self.client.jobs.get(job_id)
        except TemperError:
            return None

    async def step(self, job_id: str, at_least: int) -> Job:
        """Wait for a committed step (or the job's end)."""

        async def there() -> Job | None:
            job = await self.job(job_id)
            return job if job.progress.step >= at_least or job.ended else None

        return await until(there, what=f"step {at_least} of {job_id}")

    async def end(self, job_id: str) -> Job:
        """Wait for the job's end."""

        async def ended() -> Job | None:
            job = await self.job(job_id)
            return job if job.ended else None

        return await until(ended, what=f"the end of {job_id}")

    def kill(self, name: str) -> int:
        """SIGKILL one process of the platform; gives the pid it had."""
        pid = self.platform.state()["processes"][name]
        assert pid, f"{name} is not running"
        self.note_hosts()
        os.kill(pid, signal.SIGKILL)
        return pid

    def note_hosts(self) -> None:
        """Remember the sandbox service's process, whose control groups must be gone at the end."""
        if pid := self.platform.state()["processes"].get("sandbox"):
            self.hosts.add(pid)

    async def replaced(self, name: str, old: int) -> None:
        """Wait until another process has taken the killed one's place."""

        async def back() -> bool | None:
            pid = self.platform.state()["processes"].get(name)
            return True if pid and pid != old else None

        await until(back, what=f"a new {name}")

    async def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Rows of a query that sees everything in the log."""
        table = await self.client.query.sql(sql, fresh=True, max_rows=100_000)
        return list(table.rows)


async def until(look: Callable[[], Any], *, what: str, within_s: float = PATIENCE_S) -> Any:
    """Poll until `look` gives something, or fail with what was waited for."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        found = await look()
        if found is not None:
            return found
        await asyncio.sleep(0.2)
    raise AssertionError(f"waited {within_s:.0f} s for {what}")


@asynccontextmanager
async def running(directory: Path, *overrides: str) -> AsyncIterator[Running]:
    """A platform in `directory`, stopped at the end."""
    said: list[str] = []
    platform = Platform(DataDir.at(directory), say=said.append, overrides=overrides)
    target = await platform.start()
    client = AsyncClient(target)
    at = Running(platform, client, said)
    try:
        yield at
    finally:
        at.note_hosts()
        await client.close()
        await platform.stop()


def leftovers(directory: Path) -> list[str]:
    """Processes, mounts and cgroups that still name the data directory's platform."""
    found = [f"process {pid}: {line}" for pid, line in _processes() if str(directory) in line]
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    found += [f"mount {line}" for line in mounts if str(directory) in line]
    return found


def cgroups_of(hosts: set[int]) -> list[str]:
    """Control groups of sandbox hosts by process id, over all hierarchies.

    A host's groups are named `temper-sandbox-<pid namespace>-<pid>-<start time>`.
    """
    groups = Path("/sys/fs/cgroup").glob("**/temper-sandbox-*-*-*")
    return [str(path) for path in groups if int(path.name.split("-")[-2]) in hosts and path.is_dir()]


def _processes() -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:  # it ended while we looked
                continue
            found.append((int(entry.name), line))
    return found
