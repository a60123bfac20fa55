"""Refused attempts as events on the bus. A queue with an end: a sandbox that knocks without pause costs no memory."""

import asyncio
from typing import Final

from temper.api.sandbox.v1 import egress_pb2
from temper.runtime import topology
from temper.runtime.bus.base import Bus
from temper.runtime.errors import TemperError

_MOST: Final = 1000
_NO_JOB: Final = "none"


class Announcer:
    """Publishes in the background; what does not fit or cannot be published is counted in `lost`."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._queue: asyncio.Queue[egress_pb2.EgressAttempt] = asyncio.Queue(_MOST)
        self.lost = 0
        """Attempts that nobody was told of."""

    def tell(self, attempt: egress_pb2.EgressAttempt) -> None:
        """Publish it soon."""
        try:
            self._queue.put_nowait(attempt)
        except asyncio.QueueFull:
            self.lost += 1

    async def run(self) -> None:
        """Publish, for ever."""
        while True:
            attempt = await self._queue.get()
            subject = topology.evt("sandbox", "egress", attempt.job_id or _NO_JOB)
            try:
                await self._bus.event(subject, attempt, about=attempt.session_id)
            except TemperError:
                self.lost += 1
