"""A job that waits for a person: paused by one of its gates, once per verdict, however often the pause is written."""

from __future__ import annotations

from temper.api.job.v1.job_pb2 import Job, StateChanged
from temper.scheduler.store import persistently
from temper.scheduler.surroundings import Surroundings
from temper.scheduler.transitions import PAUSED, RUNNING, name_of


async def hold(around: Surroundings, job_id: str, key: str, reason: str) -> None:
    """Pause a running job in the name of a verdict; nothing if that verdict has paused it before."""
    paused = False

    def edit(job: Job) -> None:
        nonlocal paused
        paused = job.held != key and job.state == RUNNING
        if job.held == key:
            return
        job.held = key
        if paused:
            job.state, job.reason = PAUSED, reason

    job = await persistently(around.clock, lambda: around.store.change(job_id, edit))
    if paused:
        told = StateChanged(state=job.state, reason=job.reason)
        await persistently(
            around.clock,
            lambda: around.announcer.announce(job_id, f"state/{name_of(job.state)}/{job.etag}", told),
        )
