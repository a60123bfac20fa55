"""What any trainer must do, seen from outside: a process, a broker, an object store, and this test as scheduler and rollout."""

import asyncio
import hashlib
import json
import struct
import sys

import pytest
from tests.conformance.processes import Service, running
from tests.unit.trainer.world import JOB, World, phase, spec

from temper.api.job.v1.platform_pb2 import Presence
from temper.api.trainer.v1.trainer_pb2 import StartTraining, TrainingState
from temper.runtime import topology
from temper.runtime.log.jetstream import JetStreamLog
from temper.runtime.testing import eventually

FINISHED = TrainingState.TRAINING_STATE_FINISHED
SETTINGS = {"metrics.port": 0, "worker.poll_s": 0.2}


@pytest.fixture
async def world(nats_server, nats_bus, tmp_path):
    log = JetStreamLog(nats_bus)
    await log.connect()
    yield World(tmp_path / "objects", nats_bus, log=log)
    await log.close()


@pytest.fixture
def trainer(nats_server, tmp_path):
    return Service("trainer", nats_server, tmp_path, **{k.replace(".", "__"): v for k, v in SETTINGS.items()})


async def start(world, job_spec):
    command = StartTraining(job_id=JOB, spec=job_spec, fence=1)
    await world.bus.command(topology.cmd("trainer", JOB), command, id=f"{JOB}/train")


def tensors(shard):
    size = struct.unpack("<Q", shard[:8])[0]
    header = json.loads(shard[8 : 8 + size])
    header.pop("__metadata__", None)
    body = shard[8 + size :]
    return {name: (entry, body[slice(*entry["data_offsets"])]) for name, entry in header.items()}


async def test_every_published_tensor_matches_the_checksum_in_its_manifest(world, trainer):
    await start(world, spec(phase(steps=1, groups=1), engine="torch"))
    await world.group(0)
    async with running(trainer):
        record = await world.until(lambda r: r.state == FINISHED)
    manifest = await world.manifest(record)
    (shard,) = await world.weights(record)
    found = tensors(shard)
    assert {entry["name"] for entry in manifest["tensors"]} == found.keys()
    for entry in manifest["tensors"]:
        held, raw = found[entry["name"]]
        assert hashlib.sha256(raw).hexdigest() == entry["sha256"]
        assert [int(n) for n in entry["shape"]] == held["shape"]
    assert "model.layers.0.self_attn.q_proj.weight" in found
    assert "config.json" in manifest["files"]


async def test_killed_at_every_second_step_it_ends_with_a_balanced_ledger_and_each_step_once(world, trainer):
    await start(world, spec(phase(steps=6, groups=2, snapshot=2)))
    for index in range(12):
        await world.group(index, version=max(0, index // 2 - 1))
    async with running(trainer):
        for step in (2, 4):
            await world.until(lambda r, step=step: r.step >= step)
            trainer.kill()
            trainer.start()
        record = await world.until(lambda r: r.state == FINISHED)
    assert record.consumed_groups + sum(record.dropped_groups.values()) == 12
    assert [(span.first, span.last) for span in record.settled] == [(0, 11)]
    steps = await world.steps()
    assert [step.step for step in steps] == [1, 2, 3, 4, 5, 6]
    trained = [group for step in steps for group in step.group_ids]
    assert len(trained) == len(set(trained)) == record.consumed_groups


async def test_it_survives_the_death_of_the_broker(world, trainer, nats_server):
    await start(world, spec(phase(steps=4, groups=1)))
    await world.group(0)
    async with running(trainer):
        await world.until(lambda r: r.step == 1)
        await nats_server.kill()
        await nats_server.start()
        for index in range(1, 4):
            await world.group(index, version=index - 1)
        record = await world.until(lambda r: r.state == FINISHED)
    assert record.consumed_groups == 4


async def test_its_presence_says_what_jobs_may_name(world, trainer):
    async def presence():
        bucket = await world.bus.kv("presence")
        entries = [await bucket.get(key) for key in await bucket.keys("trainer.")]
        found = [Presence.FromString(entry.value) for entry in entries if entry is not None]
        return found[0] if found else None

    async with running(trainer):
        present = await eventually(presence)
    assert present is not None
    status = present.status
    assert {"sft", "grpo"} <= set(status["algorithms"].split(","))
    assert status["demonstrations"] == "sft"
    assert "fake" in status["engines"].split(",")


async def test_a_drained_trainer_exits_clean(world, trainer):
    await start(world, spec())
    async with running(trainer):
        await world.until(lambda r: r.version == 0)
        assert await trainer.stop() == 0


async def test_a_mistake_in_the_settings_is_named_and_costs_no_traceback():
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "temper.trainer", "--set", "worker.job=3", stderr=asyncio.subprocess.PIPE
    )
    _, said = await process.communicate()
    assert process.returncode == 2
    assert b"worker.job" in said
    assert b"jobs" in said
    assert b"Traceback" not in said
