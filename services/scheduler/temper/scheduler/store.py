"""A job in KV `jobs`: the job itself under its id, its books under `<id>.ledger`, what its gates want of the trainer under `<id>.gate`, creation keys under `request.<hash>`.

The job has two writers (API and actor), so both change it by compare-and-set on what they read. The books have one; a
conflict there means that a newer activation lives, and this one has to end: their revision is the actor's last fence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from temper.api.job.v1.job_pb2 import GateRecord, Job, JobLedger
from temper.runtime.bus.base import Bus, Entry, KeyValue
from temper.runtime.clock import Clock
from temper.runtime.errors import Conflict, Exhausted, NotFound, Stale, Unavailable
from temper.runtime.telemetry import get_logger
from temper.scheduler.facts import keep_phases
from temper.scheduler.transitions import PAUSED, RUNNING, TERMINAL

T = TypeVar("T")
M = TypeVar("M", bound=Message)

BUCKET = "jobs"
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
_MOST_CONFLICTS = 50  # two writers, each at most once a second: more is a mistake in a program


async def persistently(clock: Clock, call: Callable[[], Awaitable[T]]) -> T:
    """Call until the platform is reachable and has room. The caller's lease is the deadline: it cancels."""
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            return await call()
        except (Unavailable, Exhausted):
            await clock.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def ledger_key(job_id: str) -> str:
    """Key of a job's books."""
    return f"{job_id}.ledger"


def gate_key(job_id: str) -> str:
    """Key of what a job's gates want of its trainer."""
    return f"{job_id}.gate"


def is_job_key(key: str) -> bool:
    """Whether a key of the bucket is a job's."""
    return "." not in key


def decoded(entry: Entry) -> Job:
    """The job of an entry; its etag is the entry's revision."""
    job = Job.FromString(entry.value)
    job.etag = str(entry.revision)
    return job


def readable(kind: type[M], entry: Entry) -> M | None:
    """The message of an entry; None, and a line in the log, if its bytes are none: one bad value must not end an actor."""
    try:
        return kind.FromString(entry.value)
    except DecodeError as broken:
        get_logger().error(
            "scheduler.unreadable",
            kind=kind.__name__,
            key=entry.key,
            revision=entry.revision,
            error=str(broken),
        )
        return None


class JobStore:
    """Jobs by id."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._bucket: KeyValue | None = None

    async def kv(self) -> KeyValue:
        """The bucket."""
        if self._bucket is None:
            self._bucket = await self._bus.kv(BUCKET)
        return self._bucket

    async def find(self, job_id: str) -> Job | None:
        """The job, or None."""
        entry = await (await self.kv()).get(job_id) if is_job_key(job_id) else None
        return None if entry is None else decoded(entry)

    async def get(self, job_id: str) -> Job:
        """The job; NotFound if there is none."""
        job = await self.find(job_id)
        if job is None:
            raise NotFound(f"no job {job_id!r}", field="job_id", hint="`temper job list` shows them")
        return job

    async def create(self, job: Job) -> Job:
        """Store a new job; Conflict if the id is taken."""
        revision = await (await self.kv()).create(job.id, job.SerializeToString())
        created = Job()
        created.CopyFrom(job)
        created.etag = str(revision)
        return created

    async def change(self, job_id: str, edit: Callable[[Job], None]) -> Job:
        """Read, `edit` in place, write; again if somebody else wrote meanwhile. `edit` may raise to refuse."""
        for _ in range(_MOST_CONFLICTS):
            job = await self.get(job_id)
            before, revision = job.SerializeToString(deterministic=True), int(job.etag)
            edit(job)
            if job.SerializeToString(deterministic=True) == before:
                return job
            job.etag = ""
            try:
                job.etag = str(await (await self.kv()).update(job_id, job.SerializeToString(), revision))
            except Conflict:
                continue
            return job
        raise Conflict(f"job {job_id} changes faster than it can be edited", field="job_id")

    async def ids(self) -> list[str]:
        """Ids of all jobs."""
        return [key for key in await (await self.kv()).keys() if is_job_key(key)]

    async def all(self) -> list[Job]:
        """All jobs, newest first."""
        found = await asyncio.gather(*map(self.find, await self.ids()))
        jobs = [job for job in found if job is not None]
        return sorted(jobs, key=lambda job: (job.created_at.ToNanoseconds(), job.id), reverse=True)


class Books:
    """The saved ledger of one job, as one activation sees it."""

    def __init__(self, kv: KeyValue, job_id: str) -> None:
        self._kv, self._key, self._job_id = kv, ledger_key(job_id), job_id
        self._revision = 0

    async def load(self) -> JobLedger | None:
        """The books; None for a job that was never driven."""
        entry = await self._kv.get(self._key)
        self._revision = entry.revision if entry else 0
        return JobLedger.FromString(entry.value) if entry else None

    async def save(self, ledger: JobLedger) -> None:
        """Write; Stale if a newer activation has written."""
        body = ledger.SerializeToString(deterministic=True)
        try:
            self._revision = await self._kv.update(self._key, body, self._revision)
        except Conflict:
            entry = await self._kv.get(self._key)
            if entry is None or entry.value != body:  # equal: our own write, whose answer was lost
                raise Stale(f"job {self._job_id} is driven by a newer activation", field="fence") from None
            self._revision = entry.revision


async def write_orders(kv: KeyValue, record: GateRecord) -> None:
    """Write a job's `GateRecord`. Stale if a newer activation has written one.

    What cannot be read is replaced: the books are saved first, and they refuse an activation that was replaced.
    """
    key = gate_key(record.job_id)
    while True:
        entry = await kv.get(key)
        if entry is not None and (known := readable(GateRecord, entry)) is not None:
            if known.fence > record.fence:
                raise Stale(f"job {record.job_id} is driven under fence {known.fence}", field="fence")
            if known == record:
                return
        with suppress(Conflict):  # somebody wrote in between: look again
            body = record.SerializeToString(deterministic=True)
            await (kv.update(key, body, entry.revision) if entry else kv.create(key, body))
            return


def merge(job: Job, ours: Job) -> None:
    """Write what the actor owns into `job`, as it is in the KV; leave what the API owns.

    The API owns the specification (but for resolved variants, and phases once training began) and the moves between running and paused, and a job
    that has ended stays ended.
    """
    job.progress.CopyFrom(ours.progress)
    del job.evals[:]
    job.evals.extend(ours.evals)
    del job.gates[:]
    job.gates.extend(ours.gates)
    job.started_at.CopyFrom(ours.started_at)
    resolved = {domain.name: domain for domain in ours.spec.domains if domain.HasField("resolved")}
    for domain in job.spec.domains:
        if domain.name in resolved and not domain.HasField("resolved"):
            domain.resolved.CopyFrom(resolved[domain.name].resolved)
    keep_phases(job, ours)
    both = {job.state, ours.state}
    if job.state in TERMINAL or both == {RUNNING, PAUSED}:
        return
    job.state, job.reason = ours.state, ours.reason
    if ours.HasField("ended_at"):
        job.ended_at.CopyFrom(ours.ended_at)
