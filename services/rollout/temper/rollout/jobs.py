"""Which jobs have ended and which rest.

Nobody wants the groups of a job that has ended, so their commands leave the queue without an effect; nobody wants those of a paused
job now.

A job is looked up when one of its groups comes, and again while it plays, at most once in ``LOOK_S`` for all its groups
together. What has ended stays so and is not asked for again. A platform that cannot be asked has ended nothing.
"""

from __future__ import annotations

from contextlib import suppress

from google.protobuf.message import DecodeError

from temper.api.job.v1.job_pb2 import Job, JobState
from temper.runtime.bus.base import Bus
from temper.runtime.clock import Clock
from temper.runtime.errors import Unavailable

BUCKET = "jobs"
ENDED = (JobState.JOB_STATE_CANCELLED, JobState.JOB_STATE_FAILED, JobState.JOB_STATE_SUCCEEDED)
LOOK_S = 1.0


class Jobs:
    """Remembers what it has seen of KV ``jobs``."""

    def __init__(self, bus: Bus, clock: Clock) -> None:
        self._bus, self._clock = bus, clock
        self._ended: set[str] = set()
        self._paused: set[str] = set()
        self._looked: dict[str, float] = {}  # job -> monotonic time of the last look

    async def ended(self, job_id: str) -> bool:
        """Whether the job has ended, as of less than ``LOOK_S`` ago. A job that is not in the bucket has not."""
        now = self._clock.monotonic()
        if job_id in self._ended or now - self._looked.get(job_id, -LOOK_S) < LOOK_S:
            return job_id in self._ended
        self._looked[job_id] = now
        with suppress(Unavailable, DecodeError):
            entry = await (await self._bus.kv(BUCKET)).get(job_id)
            state = Job.FromString(entry.value).state if entry is not None else JobState.JOB_STATE_UNSPECIFIED
            self._paused.discard(job_id)
            if state == JobState.JOB_STATE_PAUSED:
                self._paused.add(job_id)
            if state in ENDED:
                self._ended.add(job_id)
                del self._looked[job_id]
        return job_id in self._ended

    def paused(self, job_id: str) -> bool:
        """Whether the job was paused when it was last looked at."""
        return job_id in self._paused

    async def rest(self) -> None:
        """Wait until looking again may tell something new."""
        await self._clock.sleep(LOOK_S)
