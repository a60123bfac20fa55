"""A platform in one process for the scheduler: real scheduler processes (without sockets), scripted peers, a fake clock."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from google.protobuf.field_mask_pb2 import FieldMask
from prometheus_client import CollectorRegistry
from tests.unit.scheduler.jobs import ScriptedTrainer, env, record_of

from temper.api.common.v1.common_pb2 import Purpose
from temper.api.job.v1 import job_pb2
from temper.api.job.v1.job_pb2 import Job, JobLedger
from temper.api.job.v1.platform_pb2 import Presence
from temper.api.job.v1.spec_pb2 import JobSpec
from temper.api.qa.v1.qa_pb2 import ResolveEnvironmentsRequest, ResolveEnvironmentsResponse
from temper.api.rollout.v1.rollout_pb2 import GroupCommand, GroupRecord
from temper.api.trainer.v1.trainer_pb2 import StartTraining
from temper.runtime.bus.base import Delivery
from temper.runtime.errors import NotFound, TemperError
from temper.runtime.supervisor import Supervisor
from temper.runtime.testing import MemoryPlatform
from temper.runtime.topology import rpc
from temper.scheduler.admission import Admission
from temper.scheduler.announcements import Announcer
from temper.scheduler.config import JobsConfig, SchedulerConfig
from temper.scheduler.ledger import IndexSet
from temper.scheduler.metrics import Metrics
from temper.scheduler.service import JobService
from temper.scheduler.steward import Steward
from temper.scheduler.store import JobStore, ledger_key
from temper.scheduler.surroundings import Surroundings
from temper.scheduler.transitions import TERMINAL
from temper.scheduler.undertaker import SERVICES, bury_poisoned
from temper.scheduler.watch import Watch

SETTINGS = SchedulerConfig(jobs=JobsConfig(stall_s=10, reissue_after_s=20, eval_samples_per_group=4))
BEAT_S = 0.5


class Scheduler:
    """One scheduler process."""

    def __init__(self, platform: MemoryPlatform, name: str, settings: SchedulerConfig = SETTINGS) -> None:
        self.bus = platform.bus.client(name)
        self.around = Surroundings(
            bus=self.bus,
            log=platform.log,
            clock=platform.clock,
            config=settings,
            metrics=Metrics(CollectorRegistry()),
            store=JobStore(self.bus),
            announcer=Announcer(self.bus, platform.log, platform.clock),
        )
        self.supervisor = Supervisor(clock=platform.clock)
        self.steward = Steward(self.around)
        self.watch = Watch(self.around)
        self.blobs = platform.blobs
        self.admission = Admission(self.around, self.blobs)
        self.api = JobService(self.around, self.admission, self.watch, self.steward.nudge)

    async def start(self) -> Scheduler:
        await self.bus.connect()
        await self.watch.begin(self.bus.source.replace("/", "-"))
        self.supervisor.start("watch", self.watch.follow)
        self.supervisor.start("steward", self.steward.run)
        for service in SERVICES:
            self.supervisor.start(service, lambda service=service: bury_poisoned(self.around, service))
        return self

    async def kill(self) -> None:
        """kill -9: from this instant on nothing it does reaches anybody."""
        self.bus.cut()
        await self.steward.drain()
        await self.supervisor.stop()

    async def stop(self) -> None:
        """SIGTERM."""
        await self.steward.drain()
        await self.supervisor.stop()
        await self.bus.close()

    async def create(self, spec: JobSpec, request_id: str = "r1", **more: Any) -> Job:
        await self.upload(spec)
        request = job_pb2.CreateJobRequest(spec=spec, request_id=request_id, **more)
        return (await self.api.CreateJob(request, None)).job

    async def upload(self, spec: JobSpec) -> None:
        for ref in spec.policy.checkpoint.files.values():
            await self.blobs.put(ref.key, b"x")

    async def job(self, job_id: str) -> Job:
        return (await self.api.GetJob(job_pb2.GetJobRequest(job_id=job_id), None)).job

    async def update(self, job: Job, *paths: str) -> Job:
        request = job_pb2.UpdateJobRequest(job=job, update_mask=FieldMask(paths=paths))
        return (await self.api.UpdateJob(request, None)).job

    async def books(self, job_id: str) -> JobLedger:
        entry = await (await self.around.store.kv()).get(ledger_key(job_id))
        assert entry is not None
        return JobLedger.FromString(entry.value)


class Peers:
    """qa, one trainer and one rollout worker on the bus; `mischief` may lose or repeat what they do."""

    def __init__(self, platform: MemoryPlatform, seed: int = 0) -> None:
        self.platform = platform
        self.bus = platform.bus.client("peers/1")
        self.chance = random.Random(seed)
        self.trainers: dict[str, ScriptedTrainer] = {}
        self.played: list[str] = []
        self.refused_envs: dict[str, str] = {}
        self.refuse_job: str = ""
        self.rolling = True
        self.mischief: Callable[[GroupCommand, Delivery], Awaitable[bool]] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._records: dict[str, list[GroupRecord]] = {}

    async def start(self) -> Peers:
        await self.bus.connect()
        await self.bus.serve(
            rpc("qa", "ResolveEnvironments"), ResolveEnvironmentsRequest, self._resolve, queue="qa"
        )
        await self.announce("trainer", "rollout", "sandbox", "qa")
        self._tasks = [asyncio.create_task(self._train()), asyncio.create_task(self._roll())]
        return self

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await self.bus.close()

    async def announce(self, *services: str) -> None:
        bucket = await self.bus.kv("presence")
        for service in services:
            presence = Presence(
                service=service, instance="1", state="ready", status={"slots": "4", "in_use": "1"}
            )
            await bucket.put(f"{service}.1", presence.SerializeToString())

    async def _resolve(self, request: ResolveEnvironmentsRequest, _: object) -> ResolveEnvironmentsResponse:
        for index, wish in enumerate(request.wishes):
            if wish.name in self.refused_envs:
                raise NotFound(self.refused_envs[wish.name], field=f"wishes[{index}].name")
        envs = [env(wish.name) for wish in request.wishes]
        for each in envs:
            each.digest = digest_of(each.name)
        return ResolveEnvironmentsResponse(envs=envs)

    # ------------------------------------------------------------ trainer
    async def _train(self) -> None:
        async for delivery in self.bus.commands("trainer", concurrency=4):
            command = delivery.message(StartTraining)
            if self.refuse_job:
                await delivery.term(self.refuse_job)
                continue
            await delivery.ack()
            if command.job_id not in self.trainers:
                trainer = ScriptedTrainer(list(command.spec.phases), command.job_id)
                self.trainers[command.job_id] = trainer
                for record in self._records.get(command.job_id, []):
                    trainer.offer(record)
            await self._publish(command.job_id)

    async def _publish(self, job_id: str) -> None:
        bucket = await self.bus.kv("policies")
        await bucket.put(job_id, self.trainers[job_id].published().SerializeToString())

    async def _step(self, job_id: str) -> None:
        trainer = self.trainers.get(job_id)
        while trainer is not None and trainer.step():
            await self._publish(job_id)

    # ------------------------------------------------------------ rollout
    async def _roll(self) -> None:
        async for delivery in self.bus.commands("rollout", concurrency=8):
            while not self.rolling:
                await self.platform.clock.sleep(BEAT_S)
            command = delivery.message(GroupCommand)
            if self.mischief is not None and await self.mischief(command, delivery):
                continue
            await self.play(command)
            await delivery.ack()

    async def play(self, command: GroupCommand, *, suffix: str = "") -> None:
        """Run a group and publish its record, as a worker does."""
        self.played.append(command.group_id)
        solved = command.purpose == Purpose.PURPOSE_EVAL or self.chance.random() < 0.5
        record = record_of(command, solved=solved)
        await self.platform.log.append("trajectories", command.job_id, record, id=command.group_id + suffix)
        self._records.setdefault(command.job_id, []).append(record)
        await self.platform.clock.sleep(0.05)
        if command.job_id in self.trainers:
            self.trainers[command.job_id].offer(record)
            await self._step(command.job_id)

    async def settle_dead(self, job_id: str) -> None:
        """The real trainer reads the log, so it also sees records that the scheduler appended."""
        if await self.platform.log.end("trajectories", job_id) is None:
            return  # nothing to read, and on this clock a read would wait for ever
        for entry in await self.platform.log.read(
            "trajectories", key=job_id, max_records=10_000, timeout_s=0
        ):
            record = entry.message(GroupRecord)
            if record.drop_reason and job_id in self.trainers:
                self.trainers[job_id].offer(record)
        await self._step(job_id)


class World:
    """Everything together."""

    def __init__(self, platform: MemoryPlatform) -> None:
        self.platform, self.clock = platform, platform.clock
        self.schedulers: list[Scheduler] = []
        self.peers = Peers(platform)

    async def scheduler(self, name: str, settings: SchedulerConfig = SETTINGS) -> Scheduler:
        made = await Scheduler(self.platform, name, settings).start()
        self.schedulers.append(made)
        return made

    async def stop(self) -> None:
        for scheduler in self.schedulers:
            await scheduler.stop()
        await self.peers.stop()

    async def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds / BEAT_S)):
            await self.peers.announce("trainer", "rollout", "sandbox", "qa")
            await self.clock.advance(BEAT_S)
            for job_id in list(self.peers.trainers):
                await self.peers.settle_dead(job_id)

    async def until_over(self, scheduler: Scheduler, job_id: str, within_s: float = 300.0) -> Job:
        for _ in range(round(within_s)):
            await self.pass_time(1.0)
            job = await scheduler.job(job_id)
            if job.state in TERMINAL:
                await self.pass_time(2.0)
                return await scheduler.job(job_id)
        job = await scheduler.job(job_id)
        raise AssertionError(f"{job_id} is not over: {job.progress}, {await scheduler.books(job_id)}")


async def assert_balanced(scheduler: Scheduler, peers: Peers, job_id: str) -> None:
    """published = consumed + dropped, each index exactly once, none trained twice."""
    progress = await assert_settled(scheduler, job_id)
    trained = peers.trainers[job_id].trained
    assert len(trained) == len(set(trained)) == progress.groups_consumed


async def assert_settled(scheduler: Scheduler, job_id: str) -> job_pb2.JobProgress:
    """published = consumed + dropped, each index exactly once."""
    books, job = await scheduler.books(job_id), await scheduler.job(job_id)
    settled = IndexSet((each.first, each.last) for each in books.settled)
    assert len(settled) == books.next_index
    assert not books.unsettled
    progress = job.progress
    assert progress.groups_published == books.next_index
    assert progress.groups_consumed + sum(progress.groups_dropped.values()) == books.next_index
    return progress


def digest_of(name: str) -> str:
    """A digest for each environment."""
    return hashlib.sha256(name.encode()).hexdigest()


async def raised(call: Awaitable[object]) -> TemperError:
    """The error of a call that must fail."""
    try:
        await call
    except TemperError as error:
        return error
    raise AssertionError("the call should have failed")
