"""WatchJob: a snapshot, then the job's events from a cursor, until the job ends.

A cursor is `<sequence>-<unix seconds>` of the event stream. One that is older than the stream remembers gets a fresh
snapshot instead of a gap. What a crash may have left untold is found by looking at the job itself in silence.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import dataclass

from temper.api.job.v1.job_pb2 import Job, JobEvent, WatchJobResponse
from temper.runtime import topology
from temper.runtime.bus.base import Event
from temper.runtime.errors import Rejected
from temper.scheduler.surroundings import Surroundings
from temper.scheduler.transitions import TERMINAL

SILENCE_S = 5.0  # a live job sends counters every second
REPLAY_S = 1.0  # for what the stream still holds of a job that has ended
SETTLE_S = 5.0  # between the event that a job has ended and its record saying so
_QUEUE = 1000


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in the event stream. Example: `Cursor(41, 1772366400)`, in text `41-1772366400`."""

    seq: int
    """Sequence of the last event seen."""
    time: int
    """Unix seconds at which that was."""

    def __str__(self) -> str:
        return f"{self.seq}-{self.time}"

    @staticmethod
    def parse(text: str) -> Cursor:
        """Rejected if it is not a cursor."""
        seq, _, time = text.partition("-")
        if not seq.isdecimal() or not time.isdecimal():
            raise Rejected(f"{text!r} is not a cursor", field="cursor", hint="leave it empty to start afresh")
        return Cursor(int(seq), int(time))


class Watch:
    """Follows the event stream once for the process, to know where it ends, and once for each watcher."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._last = 0
        self._retention_s = topology.load().stream(topology.EVT).max_age_s

    async def begin(self, instance: str) -> None:
        """Learn where the stream ends, by an event of our own."""
        hello = JobEvent(job_id="", time=None)
        subject = topology.evt("platform", "scheduler", instance)
        self._last = await self._around.bus.event(subject, hello)

    async def follow(self) -> None:
        """Keep knowing it, for ever."""
        async with aclosing(self._around.bus.events(f"{topology.PREFIX}.evt.>", after=self._last)) as events:
            async for event in events:
                self._last = max(self._last, event.seq)

    async def messages(self, job_id: str, text: str) -> AsyncIterator[WatchJobResponse]:
        """What the watcher gets. Rejected for an unknown job or a cursor that is none."""
        place = self._valid(Cursor.parse(text)) if text else None
        end = Cursor(
            self._last, int(self._around.clock.now())
        )  # before the job is read: nothing falls between
        job = await self._around.store.get(job_id)
        if place is None:
            yield WatchJobResponse(cursor=str(end), snapshot=job)
            if job.state in TERMINAL:
                return
            place = end
        async for message in self._after(job, place):
            yield message

    def _valid(self, cursor: Cursor) -> Cursor | None:
        age_s = self._around.clock.now() - cursor.time
        return cursor if age_s < 0.95 * self._retention_s else None

    async def _after(self, job: Job, place: Cursor) -> AsyncIterator[WatchJobResponse]:
        queue: asyncio.Queue[Event] = asyncio.Queue(_QUEUE)
        pump = asyncio.create_task(self._pump(job.id, place.seq, queue))
        patience_s = REPLAY_S if job.state in TERMINAL else SILENCE_S
        try:
            while True:
                event = await self._next(queue, pump, patience_s)
                if event is None:
                    now = await self._around.store.get(job.id)
                    if now.state in TERMINAL:  # its last event was never sent, or is no longer kept
                        yield WatchJobResponse(cursor=str(place), snapshot=now)
                        return
                    continue
                place = Cursor(event.seq, int(event.envelope.time or self._around.clock.now()))
                message = event.message(JobEvent)
                if message.state.state in TERMINAL:
                    await self._settled(job.id)
                yield WatchJobResponse(cursor=str(place), event=message)
                if message.state.state in TERMINAL:
                    return
        finally:
            pump.cancel()
            with suppress(asyncio.CancelledError):
                await pump

    async def _pump(self, job_id: str, after: int, queue: asyncio.Queue[Event]) -> None:
        async with aclosing(self._around.bus.events(topology.evt("job", job_id), after=after)) as events:
            async for event in events:
                await queue.put(event)

    async def _next(
        self, queue: asyncio.Queue[Event], pump: asyncio.Task[None], patience_s: float
    ) -> Event | None:
        """The next event; None after a silence. Raises what ended the stream."""
        if pump.done():
            pump.result()
        try:
            async with self._around.clock.timeout(patience_s):
                return await queue.get()
        except TimeoutError:
            return None

    async def _settled(self, job_id: str) -> None:
        """Wait until GetJob says what the last event says: the event is told first."""
        with suppress(TimeoutError):
            async with self._around.clock.timeout(SETTLE_S):
                while (await self._around.store.get(job_id)).state not in TERMINAL:
                    await self._around.clock.sleep(0.05)
