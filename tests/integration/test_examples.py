"""Every example is a job that runs: shortened, all of them side by side on one embedded platform."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.integration.platforms import ROOT, Running, running

from temper.client.jobfile import load_job
from temper.client.runs.submit import prepare, submit

EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.toml"))
SELDOM = {"quickstart", "from_scratch", "warmstart"}
"""Run whole elsewhere: by `make demo` and by the benchmark of the quick start."""
SMALL = ["eval.tasks_per_domain=8", "eval.every=0", "eval.during_tasks=0", "accept={}"]
pytestmark = pytest.mark.faults


def shortened(name: str) -> list[str]:
    """Overrides that leave the shape of a job as it is and its phases short."""
    job = load_job(ROOT / "examples" / f"{name}.toml")
    sets = list(SMALL)
    for phase in job.phase:
        sets += [f"phase.{phase.name}.steps=3", f"phase.{phase.name}.groups_per_step=2"]
        if phase.publish_every and phase.publish_every > 3:
            sets.append(f"phase.{phase.name}.publish_every=3")
        if phase.demo:
            sets.append(f"phase.{phase.name}.tasks_per_group=4")
    return sets


async def check(at: Running, name: str, job_id: str) -> None:
    """The job succeeded, every phase made its steps, and what its algorithm promises is in the records."""
    job = await at.end(job_id)
    assert job.state == "succeeded", (name, job.reason, at.said)
    phases = load_job(ROOT / "examples" / f"{name}.toml").phase
    assert job.progress.step == 3 * len(phases)
    rows = await at.rows(f"SELECT phase_name, algorithm, skipped FROM steps FINAL WHERE job_id = '{job_id}'")
    assert {(row[0], row[1]) for row in rows} == {(phase.name, phase.algorithm) for phase in phases}
    policies = {policy.job_id: policy for policy in await at.client.platform.policies()}
    trains_judge = any(phase.algorithm == "reward_model" for phase in phases)
    assert (policies[job_id].reward_model is not None) == trains_judge


async def test_every_example_trains_and_succeeds(tmp_path: Path):
    names = [name for name in EXAMPLES if name not in SELDOM]
    async with running(tmp_path / "data") as at:
        jobs: dict[str, str] = {}
        for name in names:
            prepared = prepare(ROOT / "examples" / f"{name}.toml", shortened(name), 7)
            jobs[name] = (await submit(at.client, prepared)).id
        for name, job_id in jobs.items():
            await check(at, name, job_id)
