"""A quarantine in mid-job: scheduler and trainer are the real ones, rollout and qa are scripted."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
from collections.abc import AsyncIterator

import pytest_asyncio
from prometheus_client import CollectorRegistry
from tests.platform.scheduling import Peers, World, assert_settled, digest_of
from tests.unit.scheduler.jobs import policy_phase, record_of, spec

from temper.api.common.v1.common_pb2 import VersionSpan
from temper.api.job.v1.spec_pb2 import JobSpec
from temper.api.qa.v1.qa_pb2 import EnvironmentRecord, EnvironmentState
from temper.api.rollout.v1.rollout_pb2 import GroupCommand, GroupTable, SampleTokens
from temper.api.trainer.v1.trainer_pb2 import PolicyRecord, StepRecord
from temper.runtime.bus.memory import MemoryBus
from temper.runtime.clock import SystemClock
from temper.runtime.log.memory import MemoryLog
from temper.runtime.testing import MemoryPlatform, eventually
from temper.scheduler.config import JobsConfig, NamesConfig, SchedulerConfig
from temper.scheduler.transitions import RUNNING, SUCCEEDED
from temper.trainer.actor import TrainerActor
from temper.trainer.config import TrainerConfig, WorkerConfig
from temper.trainer.metrics import TrainerMetrics
from temper.trainer.surroundings import Surroundings

SETTINGS = SchedulerConfig(jobs=JobsConfig(beat_s=0.05, look_s=0.05), names=NamesConfig(engines=["fake"]))
MODEL = {"family": "qwen3", "hiddenSize": 16, "layers": 1, "heads": 2, "kvHeads": 1, "intermediateSize": 16}
SIZES = {"maxPositions": 256, "vocabSize": 40, "tieEmbeddings": True, "ropeTheta": 10000}


class PlayersOnly(Peers):
    """Rollout and qa; a real trainer takes the training commands."""

    async def _train(self) -> None:
        return

    async def play(self, command: GroupCommand, *, suffix: str = "") -> None:
        """A record with a table that can be trained on; rewards differ within the group."""
        self.played.append(command.group_id)
        record = record_of(command)
        table = GroupTable(group_id=command.group_id)
        for number, sample in enumerate(record.samples):
            sample.reward = float(number % 2)
            span = VersionSpan(start=0, end=4, version=command.min_version)
            tokens = [1, 2, 3 + number, 4]
            table.samples.append(
                SampleTokens(token_ids=tokens, mask=b"\0\0\1\1", logprob_raw=[-1.0] * 4, versions=[span])
            )
        record.env.CopyFrom(command.env)
        key = f"groups/{command.group_id}"
        record.table.CopyFrom(await self.platform.blobs.put(key, table.SerializeToString()))
        await self.platform.log.append("trajectories", command.job_id, record, id=command.group_id)


@pytest_asyncio.fixture
async def world(memory_platform: MemoryPlatform) -> AsyncIterator[World]:
    clock = SystemClock()  # training happens on threads, which no clock of ours can hurry
    bus = MemoryBus(clock, name="test/1")
    await bus.connect()
    platform = dataclasses.replace(memory_platform, bus=bus, log=MemoryLog(clock), clock=clock)
    made = World(platform)
    made.peers = PlayersOnly(platform)
    await made.peers.start()
    trainer = TrainerActor(
        Surroundings(
            config=TrainerConfig(worker=WorkerConfig(poll_s=0.05)),
            bus=bus.client("trainer/1"),
            log=platform.log,
            blobs=platform.blobs,
            clock=clock,
            metrics=TrainerMetrics(CollectorRegistry()),
            instance="trainer-1",
        )
    )
    training = asyncio.create_task(trainer.run())
    yield made
    await made.stop()
    await trainer.drain()
    await training
    await bus.close()


async def two_domains(world: World, steps: int) -> JobSpec:
    files = {}
    for name in ("tokenizer.json", "temper_chat.json"):
        body = b'{"model": {}}'
        await world.platform.blobs.put(f"uploads/{name}", body)
        files[name] = {
            "key": f"uploads/{name}",
            "sha256": hashlib.sha256(body).hexdigest(),
            "size": len(body),
        }
    return spec(
        policy={"random": {**MODEL, **SIZES, "files": files}},
        phases=[policy_phase(steps=steps)],
        trainer={"engine": "fake"},
        eval={"tasksPerDomain": 2, "before": False, "after": False, "temperature": 1, "samplesPerTask": 1},
    )


async def policy_of(world: World, job_id: str) -> PolicyRecord:
    entry = await (await world.platform.bus.kv("policies")).get(job_id)
    return PolicyRecord.FromString(entry.value) if entry else PolicyRecord()


async def test_a_job_goes_on_without_the_domain_whose_environment_is_quarantined(world: World):
    steps = 12
    scheduler = await world.scheduler("scheduler/a", SETTINGS)
    job = await scheduler.create(await two_domains(world, steps))

    async def reached(step: int) -> bool:
        return (await policy_of(world, job.id)).step >= step

    await eventually(lambda: reached(2))
    world.peers.rolling = False  # what comes now is in flight when the verdict falls

    async def owes_calc() -> bool:
        books = await scheduler.books(job.id)
        owed = [GroupCommand.FromString(body) for body in books.unsettled.values()]
        return any(each.domain == "calc" for each in owed)

    await eventually(owes_calc)
    own = EnvironmentRecord(state=EnvironmentState.ENVIRONMENT_STATE_QUARANTINED, reason="it leaks")
    own.env.name, own.env.version, own.env.digest = "calc", "1.0.0", digest_of("calc")
    environments = await world.platform.bus.kv("environments")
    await environments.put("calc.1-0-0.own", own.SerializeToString())

    async def revoked() -> bool:
        return (await policy_of(world, job.id)).dropped_groups["DROP_REASON_REVOKED"] > 0

    await eventually(revoked)  # the credits are free while nobody plays
    step, issued = (await policy_of(world, job.id)).step, (await scheduler.books(job.id)).domain_issued
    assert (await scheduler.job(job.id)).state == RUNNING
    world.peers.rolling = True

    async def succeeded() -> bool:
        return (await scheduler.job(job.id)).state == SUCCEEDED

    await eventually(succeeded)
    done = await scheduler.job(job.id)
    assert done.progress.step == steps
    assert done.progress.domain_groups["calc"] == issued["calc"]
    assert done.progress.domain_groups["sums"] > issued["sums"]
    await assert_settled(scheduler, job.id)
    records = await world.platform.log.read("steps", key=job.id, max_records=100, timeout_s=0.1)
    trained = [record.message(StepRecord) for record in records]
    assert all("calc" not in each.domain_reward for each in trained[step + 1 :])
    assert sum(len(each.group_ids) for each in trained) == done.progress.groups_consumed == 3 * steps
