"""What happened in a job, told twice: an event for those who watch now, a log record for those who ask later."""

from __future__ import annotations

from temper.api.job.v1.job_pb2 import EvalResult, GateVerdict, JobEvent, JobProgress, Notice, StateChanged
from temper.runtime.bus.base import Bus
from temper.runtime.clock import Clock
from temper.runtime.log.base import EventLog
from temper.runtime.topology import evt
from temper.scheduler.groups import timestamp

TOPIC = "jobs"


class Announcer:
    """Publishes `JobEvent`s on `temper.v1.evt.job.<id>` and topic `jobs`."""

    def __init__(self, bus: Bus, log: EventLog, clock: Clock) -> None:
        self._bus, self._log, self._clock = bus, log, clock

    async def announce(
        self, job_id: str, key: str, payload: StateChanged | EvalResult | Notice | GateVerdict
    ) -> None:
        """Idempotent by `key`: the same announcement again is the same event and the same record."""
        event = JobEvent(job_id=job_id, time=timestamp(self._clock.now()))
        match payload:
            case StateChanged():
                event.state.CopyFrom(payload)
            case EvalResult():
                event.eval.CopyFrom(payload)
            case Notice():
                event.notice.CopyFrom(payload)
            case GateVerdict():
                event.gate.CopyFrom(payload)
        name = f"{job_id}/{key}"
        await self._log.append(TOPIC, job_id, event, id=name)
        await self._bus.event(evt("job", job_id), event, id=name, about=job_id)

    async def progress(self, job_id: str, progress: JobProgress) -> None:
        """Counters: an event only, and never missed, since the next one comes in a second."""
        event = JobEvent(job_id=job_id, time=timestamp(self._clock.now()), progress=progress)
        await self._bus.event(evt("job", job_id), event, about=job_id)
