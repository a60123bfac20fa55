"""What any scheduler must do, seen from outside: a process on a real broker, spoken to over gRPC and by messages only."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pytest
import pytest_asyncio
from tests.conformance.processes import Service, running
from tests.conformance.scheduler.peers import Peers, books
from tests.unit.scheduler.jobs import CHECKPOINT, demo_phase, policy_phase, spec

from temper.api.common.v1.common_pb2 import DropReason
from temper.api.job.v1 import job_pb2, job_pb2_grpc, platform_pb2, platform_pb2_grpc
from temper.api.job.v1.job_pb2 import Job, JobState
from temper.api.job.v1.spec_pb2 import JobSpec
from temper.runtime.bus.nats import NatsBus
from temper.runtime.embedded import NatsServer, free_port
from temper.runtime.errors import Conflict, NotFound, Rejected, TemperError
from temper.runtime.log.jetstream import JetStreamLog
from temper.runtime.rpc import channel, rpc_errors
from temper.runtime.testing import eventually

CREDITS = 2 * 3  # (max_staleness + 1) * groups_per_step of the test's phases
QUICK = {"jobs__lease_ttl_s": 1.0, "jobs__look_s": 0.1, "jobs__beat_s": 0.1, "metrics__port": 0}
STATES = ("PENDING", "STARTING", "RUNNING", "FINISHING", "SUCCEEDED")
ENDED = (JobState.JOB_STATE_SUCCEEDED, JobState.JOB_STATE_FAILED, JobState.JOB_STATE_CANCELLED)


@dataclass
class World:
    """A broker, the peers, and schedulers by the port of their API."""

    broker: NatsServer
    bus: NatsBus
    peers: Peers
    root: Path

    def scheduler(self) -> tuple[Service, str]:
        """A process that is not started yet, and its address."""
        port = free_port()
        root = self.root / str(port)
        root.mkdir()
        settings = {**QUICK, "grpc__port": port, "blobs__url": (self.root / "objects").as_uri()}
        return Service("scheduler", self.broker, root, **settings), f"127.0.0.1:{port}"


@pytest_asyncio.fixture
async def world(nats_server: NatsServer, nats_bus: NatsBus, tmp_path: Path) -> AsyncIterator[World]:
    log = JetStreamLog(nats_bus)
    await log.connect()
    async with Peers(nats_bus, log) as peers:
        yield World(nats_server, nats_bus, peers, tmp_path)
    await log.close()


class Api:
    """A client of one address that waits out a scheduler that is away."""

    def __init__(self, address: str) -> None:
        self._connection = channel(address)
        self.jobs = job_pb2_grpc.JobServiceStub(self._connection)
        self.platform = platform_pb2_grpc.PlatformServiceStub(self._connection)
        self.artifacts = platform_pb2_grpc.ArtifactServiceStub(self._connection)

    async def __aenter__(self) -> Self:
        with rpc_errors():
            await self.jobs.ListJobs(job_pb2.ListJobsRequest(), wait_for_ready=True, timeout=60)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._connection.close()

    async def upload(self, job_spec: JobSpec) -> JobSpec:
        """The specification with a checkpoint that is there."""

        async def pieces() -> AsyncIterator[platform_pb2.UploadRequest]:
            yield platform_pb2.UploadRequest(chunk=b"a file")

        for name in CHECKPOINT:
            ref = (await self.artifacts.Upload(pieces())).ref
            job_spec.policy.checkpoint.files[name].CopyFrom(ref)
        return job_spec

    async def create(self, job_spec: JobSpec, request_id: str = "r1", **more: bool) -> Job:
        request = job_pb2.CreateJobRequest(spec=await self.upload(job_spec), request_id=request_id, **more)
        with rpc_errors():
            return (await self.jobs.CreateJob(request)).job

    async def get(self, job_id: str) -> Job:
        with rpc_errors():
            return (await self.jobs.GetJob(job_pb2.GetJobRequest(job_id=job_id))).job

    async def until(self, job_id: str, reached: Callable[[Job], bool]) -> Job:
        async def look() -> Job | None:
            try:
                job = await self.get(job_id)
            except NotFound:
                raise
            except TemperError:
                return None
            return job if reached(job) else None

        job = await eventually(look, within_s=60, what=f"the wanted state of {job_id}")
        assert job is not None
        return job

    async def end(self, job_id: str) -> Job:
        return await self.until(job_id, lambda job: job.state in ENDED)


async def assert_balanced(world: World, job: Job) -> None:
    """Every index asked for once, settled once; the ledger, the job and the peers agree."""
    ledger = await books(world.bus, job.id)
    progress = job.progress
    assert world.peers.indexes(job.id) == list(range(ledger.next_index))
    assert not ledger.unsettled
    assert progress.groups_published == ledger.next_index
    assert progress.groups_consumed + sum(progress.groups_dropped.values()) == ledger.next_index
    trained = world.peers.trainers[job.id].trained
    assert len(trained) == len(set(trained)) == progress.groups_consumed
    assert world.peers.changed == []
    assert world.peers.most_in_flight <= CREDITS


async def test_a_request_makes_one_job_and_a_dry_run_makes_none(world: World) -> None:
    service, address = world.scheduler()
    async with running(service), Api(address) as api:
        dry = await api.create(spec(), validate_only=True)
        assert dry.spec.phases[0].algorithm == "grpo"
        assert not (await api.jobs.ListJobs(job_pb2.ListJobsRequest())).jobs
        first = await api.create(spec())
        again = await api.create(spec())
        assert first.id == again.id
        with pytest.raises(Conflict) as changed:
            await api.create(spec(seed=8))
        assert changed.value.field == "request_id"
        with pytest.raises(NotFound) as nobody:
            await api.get("nobody")
        assert nobody.value.field == "job_id"
        with pytest.raises(Rejected) as wrong:
            await api.create(spec(phases=[policy_phase(algorithm="grop")]), "r2")
        assert wrong.value.field == "spec.phases[0].algorithm"
        with pytest.raises(Rejected) as unknown:
            await api.create(spec(domains=[{"name": "x", "env": "unknown", "share": 1}]), "r3")
        assert unknown.value.field == "spec.domains[0].env"
        done = await api.end(first.id)
        assert done.state == JobState.JOB_STATE_SUCCEEDED
        await assert_balanced(world, done)
        assert {(each.point, each.domain) for each in done.evals} == {
            (point, domain) for point in ("before", "after") for domain in ("calc", "sums")
        }
        assert await service.stop() == 0


async def test_credits_bound_what_is_in_flight_and_a_cancelled_job_asks_for_nothing_more(
    world: World,
) -> None:
    service, address = world.scheduler()
    evaluation = {"tasksPerDomain": 6, "before": False, "after": False, "temperature": 1, "samplesPerTask": 1}
    async with running(service), Api(address) as api:
        world.peers.rolling.clear()
        # more steps than scripted peers can take before the cancel arrives, on any machine
        job = await api.create(spec(phases=[policy_phase(steps=1_000_000)], eval=evaluation))
        await eventually(lambda: len(world.peers.indexes(job.id)) >= CREDITS)
        beats = 0
        async for message in api.jobs.WatchJob(job_pb2.WatchJobRequest(job_id=job.id)):
            beats += message.event.HasField("progress")
            if beats == 5:  # it has looked and decided again and again
                assert message.event.progress.groups_in_flight == CREDITS
                break
        assert world.peers.indexes(job.id) == list(range(CREDITS))
        world.peers.rolling.set()
        await api.until(job.id, lambda now: now.progress.step >= 3)
        request = job_pb2.CancelJobRequest(job_id=job.id, reason="enough")
        assert (await api.jobs.CancelJob(request)).job.state == JobState.JOB_STATE_CANCELLED
        over = await api.until(job.id, lambda now: not now.progress.groups_in_flight)
        assert (over.state, over.reason) == (JobState.JOB_STATE_CANCELLED, "enough")
        assert world.peers.most_in_flight <= CREDITS
        assert (await books(world.bus, job.id)).next_index == over.progress.groups_published


async def test_a_watch_goes_on_behind_its_cursor_on_any_scheduler(world: World) -> None:
    (one, first), (two, second) = world.scheduler(), world.scheduler()
    async with running(one, two), Api(first) as api, Api(second) as other:
        job = await api.create(spec(phases=[policy_phase(steps=8)]))
        seen: list[job_pb2.WatchJobResponse] = []
        async for message in api.jobs.WatchJob(job_pb2.WatchJobRequest(job_id=job.id)):
            seen.append(message)
            if message.event.state.state == JobState.JOB_STATE_RUNNING:
                break
        assert seen[0].HasField("snapshot")
        resumed = job_pb2.WatchJobRequest(job_id=job.id, cursor=seen[-1].cursor)
        async for message in other.jobs.WatchJob(resumed):
            assert message.HasField("event")
            seen.append(message)
        cursors = [message.cursor for message in seen[1:]]
        assert len(cursors) == len(set(cursors))
        told = [
            seen[0].snapshot.state,
            *(each.event.state.state for each in seen if each.event.HasField("state")),
        ]
        moves = [state for at, state in enumerate(told) if at == 0 or state != told[at - 1]]
        order = [JobState.Value(f"JOB_STATE_{name}") for name in STATES]
        assert moves == order[order.index(moves[0]) :]
        assert (await other.get(job.id)).state == JobState.JOB_STATE_SUCCEEDED


async def test_killed_again_and_again_no_group_index_is_lost_or_doubled(world: World) -> None:
    (one, first), (two, second) = world.scheduler(), world.scheduler()
    world.peers.refused.add(7)
    async with running(one, two), Api(first) as api, Api(second) as other:
        job = await api.create(spec(phases=[demo_phase(steps=4), policy_phase(steps=16)]))
        for step, service, standby in ((3, one, other), (8, two, api), (12, one, other)):
            await standby.until(job.id, lambda now, step=step: now.progress.step >= step)
            service.kill()
            await standby.until(job.id, lambda now, step=step: now.progress.step >= step + 2)
            service.start()
        done = await other.end(job.id)
        assert done.state == JobState.JOB_STATE_SUCCEEDED
        await assert_balanced(world, done)
        poison = DropReason.Name(DropReason.DROP_REASON_POISON)
        assert done.progress.groups_dropped[poison] == 1
        assert set(done.progress.groups_dropped) <= {poison, "DROP_REASON_LATE", "DROP_REASON_STALE"}
        (letter,) = (await other.platform.ListDeadLetters(platform_pb2.ListDeadLettersRequest())).letters
        assert letter.id.partition("~")[0] == f"{job.id}-7"
        assert letter.reason == "nobody can play this"
