"""Watch a job to its end."""

from __future__ import annotations

from temper.client.runs.display import Display
from temper.client.sdk.aio import AsyncClient
from temper.client.sdk.types import Job


async def follow(client: AsyncClient, job_id: str, display: Display) -> Job:
    """Show everything that happens to a job until it ends; returns its last state."""
    cursor = ""
    while True:
        async for update in client.jobs.watch(job_id, cursor=cursor):
            cursor = update.cursor
            display.apply(update)
            if display.view.ended:
                break
        job = await client.jobs.get(job_id)
        if job.ended:
            return job  # otherwise the server closed the stream in an orderly restart: resume
