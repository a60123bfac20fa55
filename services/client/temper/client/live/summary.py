"""The numbers of a job as one JSON object, for scripts (`temper run --summary FILE`)."""

from __future__ import annotations

from typing import Any

from temper.client.live.results import Comparison, compare
from temper.client.live.words import reason_word
from temper.client.sdk.types import Job


def summarize(job: Job) -> dict[str, Any]:
    """`{domains: {name: {before, after, n}}, steps, wall_s, groups, gates, trainer_idle, rollout_idle, policy_versions}`.

    Shares are 0..1, times seconds; `before` and `after` are pass@1 on held-out tasks, null where not evaluated;
    `policy_versions` counts the published ones, the initial policy included.
    """
    progress = job.progress
    return {
        "job": job.id,
        "name": job.name,
        "seed": int(job.spec.get("seed", 0)),
        "state": job.state,
        "reason": job.reason,
        "domains": {row.domain: _domain(row) for row in compare(job)},
        "steps": progress.step,
        "wall_s": round(_wall(job), 3),
        "groups": {
            "published": progress.groups_published,
            "consumed": progress.groups_consumed,
            "dropped": sum(progress.groups_dropped.values()),
            "in_flight": progress.groups_in_flight,
            "dropped_by_reason": {
                reason_word(name): count for name, count in sorted(progress.groups_dropped.items())
            },
        },
        "gates": [
            {"point": each.point, "verdict": each.verdict, "action": each.action, "message": each.message}
            for each in job.gates
        ],
        "trainer_idle": progress.trainer_idle,
        "rollout_idle": progress.rollout_idle,
        "policy_versions": progress.version + 1,
    }


def _domain(row: Comparison) -> dict[str, Any]:
    last = row.after or row.before
    return {
        "before": row.before.pass_at_1 if row.before else None,
        "after": row.after.pass_at_1 if row.after else None,
        "n": last.n if last else 0,
        "before_interval": [row.before.low, row.before.high] if row.before else None,
        "after_interval": [row.after.low, row.after.high] if row.after else None,
    }


def _wall(job: Job) -> float:
    if job.created_at is not None and job.ended_at is not None:
        return job.ended_at - job.created_at
    return job.progress.wall_s
