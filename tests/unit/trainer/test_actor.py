import asyncio

import pytest
from tests.unit.trainer.world import JOB, phase, spec

from temper.api.job.v1.job_pb2 import Job, JobState
from temper.api.trainer.v1.trainer_pb2 import StartTraining, TrainingState
from temper.runtime import topology
from temper.runtime.blobs import BlobStore
from temper.runtime.testing import eventually
from temper.trainer.actor import TrainerActor
from temper.trainer.config import SnapshotsConfig
from temper.trainer.engine.base import EngineState
from temper.trainer.snapshot import Snapshot, Snapshots

FINISHED, FAILED = TrainingState.TRAINING_STATE_FINISHED, TrainingState.TRAINING_STATE_FAILED


async def start(world, job_spec, *, fence=1):
    command = StartTraining(job_id=JOB, spec=job_spec, fence=fence)
    await world.bus.command(topology.cmd("trainer", JOB), command, id=f"{JOB}/train")


@pytest.fixture
async def actor(world):
    made = TrainerActor(world.around(jobs=2))
    running = asyncio.create_task(made.run())
    yield made
    await made.drain()
    running.cancel()
    await asyncio.wait({running})


async def test_a_command_is_trained_to_its_end_and_acked(world, actor):
    for index in range(8):
        await world.group(index, version=max(0, index // 2 - 1))
    await start(world, spec())
    record = await world.until(lambda r: r.state == FINISHED)
    assert record.step == 4
    await eventually(lambda: not actor.status()["jobs"])


async def test_a_job_that_cannot_be_trained_fails_with_the_field_in_its_record(world, actor):
    await start(world, spec(phase(algorithm="grop")))
    record = await world.until(lambda r: r.state == FAILED)
    assert "phases[0].algorithm" in record.message
    assert "did you mean 'grpo'" in record.message


async def test_an_unknown_engine_fails_the_job(world, actor):
    await start(world, spec(engine="abacus"))
    record = await world.until(lambda r: r.state == FAILED)
    assert "trainer.engine" in record.message


async def test_a_cancelled_job_ends_its_session(world, actor):
    await start(world, spec())
    await world.until(lambda r: r.version == 0)
    job = Job(id=JOB, state=JobState.JOB_STATE_CANCELLED)
    await (await world.bus.kv("jobs")).put(JOB, job.SerializeToString())
    await eventually(lambda: not actor.status()["jobs"])
    await eventually(lambda: not world.bus.broker.streams["CMD"].messages)
    assert await world.bus.dead_letters() == []
    assert (await world.record()).state == TrainingState.TRAINING_STATE_RUNNING


async def test_a_drained_worker_hands_the_job_to_the_next_one(world):
    first = TrainerActor(world.around("t1"))
    running = asyncio.create_task(first.run())
    await start(world, spec(phase(steps=4, snapshot=100)))
    for index in range(4):
        await world.group(index)
    await world.until(lambda r: r.step == 2)
    await first.drain()
    await running
    second = TrainerActor(world.around("t2"))
    again = asyncio.create_task(second.run())
    for index in range(4, 8):
        await world.group(index, version=index // 2 - 1)
    record = await world.until(lambda r: r.state == FINISHED)
    assert (record.trainer, record.recoveries, record.consumed_groups) == ("t2", 1, 8)
    await second.drain()
    await again


async def test_a_command_that_is_delivered_again_while_it_is_trained_shares_the_session(world, actor):
    await start(world, spec())
    await world.until(lambda r: r.version == 0)
    command = StartTraining(job_id=JOB, spec=spec(), fence=1)
    await world.bus.command(topology.cmd("trainer", JOB), command, id="again")
    for index in range(8):
        await world.group(index, version=max(0, index // 2 - 1))
    record = await world.until(lambda r: r.state == FINISHED)
    assert record.recoveries == 0


async def test_what_jobs_that_ended_elsewhere_left_on_this_machine_is_swept_at_the_start(world, tmp_path):
    world.snapshots = SnapshotsConfig(memory_dir=str(tmp_path / "memory"), disk_dir=str(tmp_path / "disk"))
    states = {
        "over": JobState.JOB_STATE_SUCCEEDED,
        "cancelled": JobState.JOB_STATE_CANCELLED,
        "runs": JobState.JOB_STATE_RUNNING,
    }
    kv = await world.bus.kv("jobs")
    for job_id, state in states.items():
        await kv.put(job_id, Job(id=job_id, state=state).SerializeToString())
    memory, disk = (BlobStore((tmp_path / level).as_uri()) for level in ("memory", "disk"))
    left = [Snapshots(memory, "over"), Snapshots(disk, "cancelled"), Snapshots(disk, "over")]
    stay = [Snapshots(memory, "runs"), Snapshots(disk, "unknown")]
    for place in left + stay:
        await place.save(Snapshot(1, EngineState({}), {}, {}))
    actor = TrainerActor(world.around())
    running = asyncio.create_task(actor.run())

    async def gone():
        return not any([await place.steps() for place in left])

    await eventually(gone)
    assert all([await place.steps() for place in stay])
    await actor.drain()
    await running
