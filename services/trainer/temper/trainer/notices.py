"""Sentences for the people who watch a job: an event for those who look now, a log record for those who ask later."""

from __future__ import annotations

from contextlib import suppress

from temper.api.job.v1.job_pb2 import JobEvent, Notice
from temper.runtime.errors import Exhausted, Unavailable
from temper.runtime.telemetry import get_logger
from temper.runtime.topology import evt
from temper.trainer.reports import timestamp
from temper.trainer.surroundings import Surroundings

TOPIC = "jobs"


class Notices:
    """What the trainer has to say about one job beyond its numbers."""

    def __init__(self, around: Surroundings, job_id: str) -> None:
        self._around = around
        self._job = job_id
        self._said: set[str] = set()

    async def warn(self, code: str, message: str, *, key: str) -> None:
        """Say it once per code and key. Whatever is away: a notice is not worth a wait."""
        around = self._around
        around.metrics.alarms.labels(code).inc()
        get_logger().warning(f"trainer.{code}", job=self._job, problem=message)
        name = f"{self._job}/trainer/{code}/{key}"
        if name in self._said:
            return
        self._said.add(name)
        notice = Notice(level="warning", code=code, message=message)
        event = JobEvent(job_id=self._job, time=timestamp(around.clock.now()), notice=notice)
        with suppress(Unavailable, Exhausted):
            await around.bus.event(evt("job", self._job), event, id=name)
            await around.log.append(TOPIC, self._job, event, id=name)
