"""kill -9 of every process in mid-job: the job finishes, the books balance, nothing is left behind."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from tests.integration.platforms import PROCESSES, Running, cgroups_of, leftovers, running

from temper.client.sdk.types import Job

ROUNDS = int(os.environ.get("TEMPER_TEST_FAULT_ROUNDS", "1"))
pytestmark = pytest.mark.faults


async def check_books(at: Running, job: Job, steps: int) -> None:
    """published = consumed + dropped; nothing trained twice; ClickHouse has every record once."""
    assert job.state == "succeeded", (job.reason, at.said)
    done = job.progress
    assert done.step == steps
    assert done.groups_in_flight == 0
    assert done.groups_published == done.groups_consumed + sum(done.groups_dropped.values())
    where = f"WHERE job_id = '{job.id}'"
    trained = await at.rows(f"SELECT step, arrayJoin(group_ids) FROM steps FINAL {where} AND NOT skipped")
    groups = [row[1] for row in trained]
    assert len(groups) == len(set(groups)) == done.groups_consumed
    numbers = [row[0] for row in await at.rows(f"SELECT step FROM steps FINAL {where} ORDER BY step")]
    assert numbers == list(range(1, steps + 1))
    ids = [row[0] for row in await at.rows(f"SELECT group_id FROM groups FINAL {where}")]
    assert len(ids) == len(set(ids))
    assert set(groups) <= set(ids)


@pytest.mark.parametrize("seed", range(ROUNDS))
async def test_the_job_survives_the_death_of_every_process_in_random_order(tmp_path: Path, seed: int):
    order = random.Random(seed).sample(PROCESSES, len(PROCESSES))
    steps = 4 * len(order)
    directory = tmp_path / "data"
    async with running(directory) as at:
        job_id = await at.submit(tmp_path, steps=steps)
        await at.step(job_id, 1)
        for name in order:
            reached = (await at.progress(job_id)).step
            old = at.kill(name)
            await at.replaced(name, old)
            job = await at.step(job_id, min(reached + 2, steps))
            assert job.state in {"running", "finishing", "succeeded"}, (name, order, job.reason)
        await check_books(at, await at.end(job_id), steps)
    assert leftovers(directory) == []
    assert cgroups_of(at.hosts) == []


async def test_stopping_the_platform_in_mid_job_leaves_nothing_and_the_job_goes_on_at_the_next_start(
    tmp_path: Path,
):
    directory = tmp_path / "data"
    async with running(directory) as at:
        job_id = await at.submit(tmp_path, steps=8)
        await at.step(job_id, 2)
    assert leftovers(directory) == []
    assert cgroups_of(at.hosts) == []
    async with running(directory) as at:
        await check_books(at, await at.end(job_id), 8)
    assert answer_afterwards(directory, f"SELECT count() FROM steps WHERE job_id = '{job_id}'") == 8
    assert leftovers(directory) == []


def answer_afterwards(directory: Path, sql: str) -> int:
    """What `temper query` answers when no platform runs any more."""
    program = str(Path(sys.executable).with_name("temper"))
    command = [program, "query", sql, "--data-dir", str(directory), "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    return int(next(iter(row.values())))
