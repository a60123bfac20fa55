"""A policy that is ruined in the middle of a job: gates send it back, on a real platform, and the job ends well."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.integration.platforms import CHECKPOINT, running

from temper.client.runs.submit import prepare, submit

pytestmark = pytest.mark.faults

JOB = f"""\
name = "ruined"
policy = {{ checkpoint = "{CHECKPOINT}" }}
rollout = {{ max_tokens_per_turn = 40, max_turns = 3, max_tokens = 192, group_deadline_s = 30.0 }}
eval = {{ tasks_per_domain = 24, every = 5 }}

[[domain]]
name = "calc"
env = "calc"

[[domain]]
name = "products"
env = "rg/products"
params = {{ binary = true, min_terms = 2, max_terms = 2, min_digits = 2, max_digits = 3 }}

[[phase]]                       # steps that change next to nothing
name = "well"
algorithm = "grpo"
steps = 10
groups_per_step = 4
samples_per_task = 4
optimizer = {{ lr = 1e-7 }}

[[phase]]                       # a learning rate that no policy survives; the rollback takes it away
name = "ruin"
algorithm = "grpo"
steps = 14
groups_per_step = 4
samples_per_task = 4
optimizer = {{ lr = 0.3 }}

[gates]
action = "rollback"
max_drop = 0.05
on_collapse = "rollback"
lr_factor = 1e-7

[accept]
max_drop = 0.3
"""


async def test_a_ruined_policy_is_sent_back_and_the_job_ends_well(tmp_path: Path):
    path = tmp_path / "job.toml"
    path.write_text(JOB)
    async with running(tmp_path / "data") as at:
        job_id = (await submit(at.client, prepare(path, [], 7))).id
        job = await at.end(job_id)
        assert job.state == "succeeded", (
            job.reason,
            [(each.point, each.verdict, each.message) for each in job.gates],
            at.said,
        )
        assert job.progress.step == 24
        back = [each for each in job.gates if each.action == "rollback"]
        assert len(back) == 1, job.gates
        restored = await at.rows(
            f"SELECT step, version, restored_step FROM steps FINAL WHERE job_id = '{job_id}' AND restored_step IS NOT NULL"
        )
        ((step, version, went_to),) = restored
        assert step > 10 >= went_to, "the ruin begins at step 11; what was accepted lies before"
        said = await at.rows(
            f"SELECT verdict, action FROM gates FINAL WHERE job_id = '{job_id}' AND point = '{back[0].point}'"
        )
        assert ("fail", "rollback") in {(row[0], row[1]) for row in said}
        trained = await at.rows(
            f"SELECT max(step) FROM trained_samples WHERE job_id = '{job_id}' AND step > {step} AND min_version < {version}"
        )
        assert trained[0][0] in (0, None), "nothing of the rejected line is trained on after the rollback"
        ((settled,),) = await at.rows(
            f"SELECT sum(length(group_ids)) FROM steps FINAL WHERE job_id = '{job_id}'"
        )
        progress = job.progress
        assert progress.groups_consumed == settled
        assert progress.groups_published == progress.groups_consumed + sum(progress.groups_dropped.values())
