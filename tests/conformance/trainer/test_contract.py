"""What any trainer must do, seen from outside: a process, a broker, an object store, and this test as scheduler and rollout."""

import asyncio
import hashlib
import json
import struct
import sys

import pytest
from tests.conformance.processes import Service, running
from tests.unit.trainer.world import JOB, World, phase, spec

from temper.api.common.v1 import common_pb2 as common
from temper.api.job.v1.platform_pb2 import Presence
from temper.api.qa.v1.qa_pb2 import EnvironmentRecord, EnvironmentState
from temper.api.rollout.v1.rollout_pb2 import GroupRecord
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


async def test_each_group_is_settled_once_and_for_a_reason(world, trainer):
    leaky = common.EnvRef(name="calc", version="1.0.0", digest="b" * 64)
    verdict = EnvironmentRecord(env=leaky, state=EnvironmentState.ENVIRONMENT_STATE_QUARANTINED)
    await (await world.bus.kv("environments")).put("calc.1-0-0.own", verdict.SerializeToString())
    await start(world, spec(phase(steps=3, groups=1)))
    first = await world.group(0)
    await world.log.append("trajectories", JOB, first, id="again")
    altered = await world.group(1)
    await world.blobs.put(altered.table.key, b"x" * altered.table.size)
    await world.group(2)
    await world.group(3)  # two versions behind when its turn comes; the bound is one
    await world.group(4, table=False, drop_reason=common.DROP_REASON_POISON, rewards=())
    await world.group(5, env=leaky)
    evaluation = common.PURPOSE_EVAL
    await world.log.append("trajectories", JOB, GroupRecord(group_id="e", purpose=evaluation), id="e")
    async with running(trainer):
        record = await world.until(lambda r: r.step == 2 and sum(r.dropped_groups.values()) == 4)
        await world.group(6, version=2)
        record = await world.until(lambda r: r.state == FINISHED)
    reasons = ("CORRUPT", "STALE", "POISON", "REVOKED")
    assert record.dropped_groups == {f"DROP_REASON_{reason}": 1 for reason in reasons}
    assert record.consumed_groups == 3
    assert [(span.first, span.last) for span in record.settled] == [(0, 6)]
    assert [list(step.group_ids) for step in await world.steps()] == [[f"{JOB}-{n}"] for n in (0, 2, 6)]


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
        record = await world.until(lambda r: r.manifest.key)
        assert (record.version, record.step, record.fence) == (0, 0, 1)
        assert await world.weights(record)  # there before any group is
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
