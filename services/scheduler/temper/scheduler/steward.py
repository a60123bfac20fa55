"""Which jobs this process drives. Any number of schedulers may run: the lease of a job decides, nothing else.

Each process looks at all jobs, tries the lease of every live one that it does not drive, and becomes the standby of
all others by trying again. When a process dies, its leases expire and the jobs go on elsewhere within the ttl.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from temper.api.job.v1.job_pb2 import Job, StateChanged
from temper.runtime.actor import spawn
from temper.runtime.errors import TemperError
from temper.runtime.lease import Lease
from temper.runtime.supervisor import Supervisor
from temper.runtime.telemetry import get_logger
from temper.scheduler.actor import JobActor
from temper.scheduler.surroundings import Surroundings
from temper.scheduler.transitions import PAUSED, RUNNING, TERMINAL, name_of

REST_S = 60.0  # a fault that comes back at once will not be gone in less


class Steward:
    """Takes up jobs, and lets go of those that have ended."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._leases: dict[str, Lease] = {}
        self._driven: dict[str, asyncio.Task[None]] = {}
        self._over: set[str] = set()  # jobs that have ended never live again
        self._resting: dict[str, float] = {}  # job -> monotonic time until which it is left alone
        self._draining = False
        self._hint = asyncio.Event()
        self._log = get_logger()

    def nudge(self) -> None:
        """A job was created here: look now."""
        self._hint.set()

    def status(self) -> Mapping[str, object]:
        """For presence."""
        return {"jobs": len(self._driven), "leads": ",".join(sorted(self._driven))[:512]}

    async def run(self) -> None:
        """Look until drained."""
        while not self._draining:
            with suppress(TemperError):  # the platform is away: the next look tells
                await self._look()
            await self._pause()

    async def drain(self) -> None:
        """Let go of every job, so that a standby takes over at once."""
        self._draining = True
        driven = list(self._driven.values())
        for task in driven:
            task.cancel()
        await asyncio.gather(*driven, return_exceptions=True)

    async def _look(self) -> None:
        for job_id in await self._around.store.ids():
            if job_id in self._driven or job_id in self._over or self._rests(job_id):
                continue
            job = await self._around.store.find(job_id)
            if job is not None and job.state in TERMINAL:
                self._over.add(job_id)
                self._leases.pop(job_id, None)
            elif job is not None:
                await self._try(job_id)

    def _rests(self, job_id: str) -> bool:
        return self._around.clock.monotonic() < self._resting.get(job_id, 0.0)

    async def _lease(self, job_id: str) -> Lease:
        """One object per job for as long as we look: expiry is silence that this process has seen itself."""
        if job_id not in self._leases:
            self._leases[job_id] = Lease(
                await self._around.bus.kv("leases"),
                f"job.{job_id}",
                owner=self._around.bus.source,
                ttl_s=self._around.config.jobs.lease_ttl_s,
                clock=self._around.clock,
            )
        return self._leases[job_id]

    async def _try(self, job_id: str) -> None:
        lease = await self._lease(job_id)
        fence = await lease.acquire()
        if fence is None:
            return
        task = asyncio.create_task(self._drive(job_id, lease, fence), name=f"drive {job_id}")
        self._driven[job_id] = task
        self._around.metrics.jobs.set(len(self._driven))
        task.add_done_callback(lambda _: self._let_go(job_id))

    async def _drive(self, job_id: str, lease: Lease, fence: int) -> None:
        """Run the actor until the job has ended or the lease is lost; then the lease is free.

        Each job has a supervisor of its own: an actor that fails again and again stops its job, not the others.
        """
        ended = asyncio.Event()
        supervisor = Supervisor(clock=self._around.clock)
        ref = spawn(
            supervisor,
            f"job.{job_id}",
            lambda: JobActor(job_id, fence, self._around, ended),
            clock=self._around.clock,
        )
        given_up = asyncio.create_task(supervisor.wait())
        waits = [given_up, *(asyncio.create_task(event.wait()) for event in (ended, lease.lost))]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if given_up.done():
                await self._rest(job_id, str(given_up.exception()))
        finally:
            for wait in waits:
                wait.cancel()
            await supervisor.stop()
            ref.close()
            await lease.release()

    async def _rest(self, job_id: str, cause: str) -> None:
        """Leave a job alone whose actor cannot go on: paused with the cause where it can be, and tried again later."""
        self._log.error("job.given_up", job=job_id, cause=cause)
        self._resting[job_id] = self._around.clock.monotonic() + REST_S

        def pause(job: Job) -> None:
            job.reason = f"the scheduler cannot drive it: {cause}"
            if job.state == RUNNING:
                job.state = PAUSED

        with suppress(TemperError):
            job = await self._around.store.change(job_id, pause)
            told = StateChanged(state=job.state, reason=job.reason)
            await self._around.announcer.announce(job_id, f"state/{name_of(job.state)}/{job.etag}", told)

    def _let_go(self, job_id: str) -> None:
        self._driven.pop(job_id, None)
        self._around.metrics.jobs.set(len(self._driven))

    async def _pause(self) -> None:
        self._hint.clear()
        nudged = asyncio.create_task(self._hint.wait())
        slept = asyncio.create_task(self._around.clock.sleep(self._around.config.jobs.look_s))
        try:
            await asyncio.wait({nudged, slept}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            nudged.cancel()
            slept.cancel()
