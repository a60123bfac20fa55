"""Session records on their way to the event log: off the callers' path, bounded while the log is away."""

import asyncio
from collections import deque
from typing import Final

from temper.api.sandbox.v1 import sandbox_pb2
from temper.runtime.clock import Clock
from temper.runtime.errors import TemperError
from temper.runtime.log.base import EventLog
from temper.sandbox.metrics import Metrics

TOPIC: Final = "sandbox"
_KEPT: Final = 10_000
_RETRY_S: Final = 1.0
_NO_JOB: Final = "none"


class Recorder:
    """A queue in memory. A full one forgets its oldest record and counts it: telemetry never stops the work."""

    def __init__(self, log: EventLog, clock: Clock, metrics: Metrics) -> None:
        self._log = log
        self._clock = clock
        self._metrics = metrics
        self._queue: deque[sandbox_pb2.SessionRecord] = deque()
        self._wake = asyncio.Event()

    def put(self, record: sandbox_pb2.SessionRecord) -> None:
        """Take a record; never waits."""
        if len(self._queue) >= _KEPT:
            self._queue.popleft()
            self._metrics.lost_records.inc()
        self._queue.append(record)
        self._wake.set()

    async def run(self) -> None:
        """Append records as they come, for ever."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while not await self._try_flush():
                await self._clock.sleep(_RETRY_S)

    async def flush(self) -> None:
        """Append what is queued, once; what the log refuses is lost and counted."""
        if not await self._try_flush():
            self._metrics.lost_records.inc(len(self._queue))

    async def _try_flush(self) -> bool:
        while self._queue:
            record = self._queue[0]
            released = record.released_at.ToMicroseconds()
            try:
                await self._log.append(
                    TOPIC,
                    record.job_id or _NO_JOB,
                    record,
                    id=f"{record.host}/{record.session_id}/{released}",
                )
            except TemperError:
                return False
            if self._queue and self._queue[0] is record:
                self._queue.popleft()
        return True
