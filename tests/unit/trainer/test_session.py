import asyncio
import json
import shutil

import pytest
from tests.unit.trainer.world import JOB, model, phase, spec

from temper.api.common.v1 import common_pb2 as common
from temper.api.job.v1.job_pb2 import JobEvent
from temper.api.job.v1.spec_pb2 import CheckpointRef
from temper.api.qa.v1.qa_pb2 import EnvironmentRecord, EnvironmentState
from temper.api.trainer.v1.trainer_pb2 import TrainingState
from temper.runtime.errors import Rejected, Stale, Unavailable
from temper.runtime.testing import eventually
from temper.trainer.engine.fake import FakeEngine
from temper.trainer.engine.torch import make as torch_engine
from temper.trainer.plan import model_config

FINISHED = TrainingState.TRAINING_STATE_FINISHED


async def finish(session):
    async with asyncio.timeout(120):
        return await session.run()


async def kill(task):
    task.cancel()
    await asyncio.wait({task})


async def test_a_job_goes_from_version_zero_to_its_last_step(world):
    for index in range(8):
        await world.group(index, version=max(0, index // 2 - 1))
    assert await finish(world.session())
    record = await world.record()
    assert record.state == FINISHED
    assert (record.version, record.step, record.consumed_groups) == (4, 4, 8)
    assert [(r.first, r.last) for r in record.settled] == [(0, 7)]
    steps = await world.steps()
    assert [step.step for step in steps] == [1, 2, 3, 4]
    assert list(steps[1].group_ids) == ["job7-2", "job7-3"]
    assert steps[0].domain_reward["calc"] == 0.5
    assert steps[0].samples == 8


async def test_version_zero_is_published_before_any_group_exists(world):
    task = asyncio.create_task(world.session().run())
    record = await world.until(lambda r: r.version == 0)
    manifest = await world.manifest(record)
    assert manifest["tensors"][0]["name"] == "model.embed_tokens.weight"
    assert "config.json" in manifest["files"]
    await kill(task)


async def test_a_stale_group_is_dropped_without_its_bytes_and_told_at_once(world):
    task = asyncio.create_task(world.session(spec(phase(eta=0, groups=1))).run())
    await world.group(0)
    await world.until(lambda r: r.version == 1)
    stale = await world.group(1, version=0, table=False)
    stale.table.CopyFrom(common.BlobRef(key="no/such", sha256="0" * 64, size=1))
    stale.index, stale.group_id = 2, f"{JOB}-2"
    await world.append(stale)
    record = await world.until(lambda r: sum(r.dropped_groups.values()) == 2)
    assert record.dropped_groups == {"DROP_REASON_INVALID": 1, "DROP_REASON_STALE": 1}
    await kill(task)


async def test_a_group_whose_bytes_are_gone_is_dropped_as_corrupt_and_replaced(world):
    broken = await world.group(0)
    await world.blobs.delete(broken.table.key)
    altered = await world.group(1)
    await world.blobs.put(altered.table.key, b"x" * altered.table.size)
    for index in range(2, 10):
        await world.group(index, version=max(0, (index - 2) // 2 - 1))
    assert await finish(world.session())
    record = await world.record()
    assert record.dropped_groups == {"DROP_REASON_CORRUPT": 2}
    assert record.consumed_groups == 8


async def test_poison_and_evaluation_records_are_settled_and_ignored(world):
    await world.group(0, table=False, drop_reason=common.DROP_REASON_POISON, rewards=())
    evaluation = await world.group(99, table=False)
    evaluation.purpose, evaluation.group_id = common.PURPOSE_EVAL, "eval-1"
    await world.append(evaluation)
    task = asyncio.create_task(world.session().run())
    record = await world.until(lambda r: sum(r.dropped_groups.values()) == 2)
    assert record.dropped_groups["DROP_REASON_POISON"] == 1
    assert [(r.first, r.last) for r in record.settled] == [(0, 0), (99, 99)]
    await kill(task)


def variant(digest):
    return common.EnvRef(name="calc", version="1.0.0", digest=digest)


async def judge(world, digest, state):
    """As qa does."""
    record = EnvironmentRecord(env=variant(digest), state=state, reason="it leaks")
    await (await world.bus.kv("environments")).put("calc.1-0-0.own", record.SerializeToString())


async def test_groups_of_an_environment_quarantined_before_the_start_are_revoked(world):
    await judge(world, "b" * 64, EnvironmentState.ENVIRONMENT_STATE_QUARANTINED)
    for index in range(16):
        digest = ("a" if index % 2 else "b") * 64
        await world.group(index, version=max(0, index // 4 - 1), env=variant(digest))
    assert await finish(world.session())
    record = await world.record()
    assert record.consumed_groups == 8
    assert record.dropped_groups == {"DROP_REASON_REVOKED": 8}
    assert all(int(name.rpartition("-")[2]) % 2 for step in await world.steps() for name in step.group_ids)


async def test_waiting_groups_are_revoked_and_told_when_their_environment_is_quarantined(world):
    session = world.session(spec(phase(groups=3)))
    task = asyncio.create_task(session.run())
    await world.until(lambda r: r.version == 0)
    for index in range(2):
        await world.group(index, env=variant("b" * 64))
    await judge(world, "b" * 64, EnvironmentState.ENVIRONMENT_STATE_CHECKING)
    await judge(world, "b" * 64, EnvironmentState.ENVIRONMENT_STATE_QUARANTINED)
    record = await world.until(lambda r: r.dropped_groups["DROP_REASON_REVOKED"] == 2)
    assert [(span.first, span.last) for span in record.settled] == [(0, 1)]
    await judge(world, "b" * 64, EnvironmentState.ENVIRONMENT_STATE_ADMITTED)
    await eventually(lambda: not session._ledger.withdrawn)
    for index in range(2, 14):
        await world.group(index, version=max(0, (index - 2) // 3 - 1), env=variant("b" * 64))
    assert await task
    assert (await world.record()).consumed_groups == 12


async def test_a_value_of_the_registry_that_cannot_be_read_ends_no_training(world):
    await (await world.bus.kv("environments")).put("odd", b"\xff\xff")
    for index in range(8):
        await world.group(index, version=max(0, index // 2 - 1))
    assert await finish(world.session())


async def run_whole(world, job_spec, groups, engine=FakeEngine):
    for index, more in groups:
        await world.group(index, **more)
    assert await finish(world.session(job_spec, engine=engine()))
    return await world.weights(await world.record())


GROUPS = [(index, {"version": max(0, index // 2 - 1)}) for index in range(12)]


@pytest.mark.parametrize("engine", [FakeEngine, torch_engine])
@pytest.mark.parametrize("snapshot_every", [1, 4])
@pytest.mark.parametrize("crash_after", [1, 3, 5])
async def test_after_a_crash_the_same_weights_come_out_bit_for_bit(
    world, tmp_path, engine, snapshot_every, crash_after
):
    job_spec = spec(phase(steps=6, snapshot=snapshot_every))
    twin = type(world)(tmp_path / "twin", world.bus.client("twin"))
    for index, more in GROUPS:
        await twin.group(index, **more)
    for index, more in GROUPS[:10]:  # the last step waits, so that the job cannot end before the crash
        await world.group(index, **more)
    task = asyncio.create_task(world.session(job_spec, engine=engine()).run())
    await world.until(lambda r: r.step >= crash_after)
    await kill(task)
    published = [(step.step, list(step.group_ids)) for step in await world.steps()]
    for index, more in GROUPS[10:]:
        await world.group(index, **more)
    assert await finish(world.session(job_spec, engine=engine(), instance="t2"))
    record = await world.record()
    assert record.recoveries == 1
    steps = await world.steps()
    assert [step.step for step in steps] == [1, 2, 3, 4, 5, 6]
    assert [(step.step, list(step.group_ids)) for step in steps][: len(published)] == published
    assert record.consumed_groups == 12
    weights = await world.weights(record)
    kv = await world.bus.kv("policies")
    await kv.delete(JOB)
    assert await finish(twin.session(job_spec, engine=engine()))
    assert await twin.weights(await twin.record()) == weights


async def teacher_of(world):
    engine = torch_engine()
    engine.build(model_config(model()), seed=9)
    weights = engine.snapshot().files["weights.safetensors"]
    return CheckpointRef(files={"model.safetensors": await world.blobs.put("teacher", weights)})


@pytest.mark.parametrize(
    ("algorithm", "knobs"), [("ppo", {"kl_beta": 0.01}), ("dpo", {}), ("reward_model", {}), ("distill", {})]
)
async def test_reference_head_and_teacher_survive_a_crash_bit_for_bit(world, tmp_path, algorithm, knobs):
    twin = type(world)(tmp_path / "twin", world.bus.client("twin"))

    async def job(place):
        teacher = await teacher_of(place) if algorithm == "distill" else None
        return spec(phase(algorithm=algorithm, eta=8, algorithm_params=knobs, teacher=teacher))

    for index in range(8):
        await twin.group(index)
    for index in range(6):  # the last step waits, so that the job cannot end before the crash
        await world.group(index)
    task = asyncio.create_task(world.session(await job(world), engine=torch_engine()).run())
    await world.until(lambda r: r.step >= 2)
    await kill(task)
    for index in range(6, 8):
        await world.group(index)
    assert await finish(world.session(await job(world), engine=torch_engine(), instance="t2"))
    assert [step.skipped for step in await world.steps()] == [False] * 4
    weights = await world.weights(await world.record())
    await (await world.bus.kv("policies")).delete(JOB)
    assert await finish(twin.session(await job(twin), engine=torch_engine()))
    assert await twin.weights(await twin.record()) == weights


async def test_a_teacher_that_cannot_teach_is_refused_before_anything_is_trained(world):
    texts = json.dumps(model_config(model(vocab_size=41))).encode()
    files = {**(await teacher_of(world)).files, "config.json": await world.blobs.put("config", texts)}
    warm = phase("warm", algorithm="sft", steps=2, groups=1, demo=True, publish=0)
    job = spec(warm, phase(algorithm="distill", teacher=CheckpointRef(files=files)))
    with pytest.raises(Rejected, match="41 tokens") as refused:
        await world.session(job, engine=torch_engine()).run()
    assert refused.value.field == "phases[1].teacher"


async def test_weights_that_do_not_fit_their_config_are_told_of_the_teacher(world):
    texts = json.dumps(model_config(model(layers=1))).encode()
    files = {**(await teacher_of(world)).files, "config.json": await world.blobs.put("config", texts)}
    job = spec(phase(algorithm="distill", teacher=CheckpointRef(files=files)))
    for index in range(2):
        await world.group(index)
    with pytest.raises(Rejected, match="do not fit") as refused:
        await world.session(job, engine=torch_engine()).run()
    assert refused.value.field == "phases[0].teacher"


async def test_a_reward_model_is_published_at_the_end_of_its_phase_and_named_from_then_on(world):
    phases = phase("rm", algorithm="reward_model", steps=2, eta=8), phase("rl", steps=1, eta=8)
    for index in range(4):
        await world.group(index)
    await world.group(4, phase=1)
    await world.group(5, phase=1)
    assert await finish(world.session(spec(*phases, engine="torch"), engine=torch_engine()))
    record = await world.record()
    manifest = json.loads(await world.blobs.get(record.reward_model))
    names = {tensor["name"] for tensor in manifest["tensors"]}
    assert "score.weight" in names
    assert "lm_head.weight" not in names
    config = manifest["files"]["config.json"]["key"]
    assert json.loads(await world.blobs.read(config))["architectures"] == ["Qwen3ForSequenceClassification"]


async def test_a_broken_newest_snapshot_falls_back_to_the_one_before(world):
    job_spec = spec(phase(steps=6))
    for index, more in GROUPS[:8]:
        await world.group(index, **more)
    session = world.session(job_spec)
    task = asyncio.create_task(session.run())
    await world.until(lambda r: r.step == 4)
    session.stop()
    assert not await task
    (newest,) = (world.directory / "snapshots" / JOB / f"{4:010d}").glob("*.weights.safetensors")
    newest.write_bytes(newest.read_bytes()[:-1])
    for index, more in GROUPS[8:]:
        await world.group(index, **more)
    assert await finish(world.session(job_spec, instance="t2"))
    assert world.registry.get_sample_value("temper_trainer_alarms_total", {"kind": "snapshot_broken"}) == 1
    assert (await world.record()).consumed_groups == 12
    (told,) = await world.log.read("jobs", key=JOB, timeout_s=0.01)
    notice = told.message(JobEvent).notice
    assert notice.code == "snapshot_broken"
    assert "step 4" in notice.message


async def test_with_no_snapshot_left_everything_is_made_again_from_the_log(world):
    for index, more in GROUPS[:6]:
        await world.group(index, **more)
    task = asyncio.create_task(world.session(spec(phase(steps=6))).run())
    before = await world.until(lambda r: r.step == 3)
    await kill(task)
    shutil.rmtree(world.directory / "snapshots")
    for index, more in GROUPS[6:]:
        await world.group(index, **more)
    assert await finish(world.session(spec(phase(steps=6)), instance="t2"))
    after = await world.record()
    assert after.version == 6
    assert before.settled[0].last == 5
    assert [step.step for step in await world.steps()] == [1, 2, 3, 4, 5, 6]


async def test_a_stop_leaves_a_snapshot_and_the_job_unfinished(world):
    for index in range(4):
        await world.group(index)
    session = world.session(spec(phase(steps=6, snapshot=100)))
    task = asyncio.create_task(session.run())
    await world.until(lambda r: r.step == 2)
    session.stop()
    assert await task is False
    assert (world.directory / "snapshots" / JOB / f"{2:010d}" / "manifest.json").exists()


async def test_a_second_trainer_takes_over_and_the_first_stops_with_stale(world):
    first = asyncio.create_task(world.session(instance="t1").run())
    await world.until(lambda r: r.trainer == "t1")
    second = asyncio.create_task(world.session(instance="t2").run())
    await world.until(lambda r: r.trainer == "t2")
    for index in range(2):
        await world.group(index)
    with pytest.raises(Stale, match="another trainer"):
        await first
    await world.until(lambda r: r.trainer == "t2" and r.step == 1)
    await kill(second)


async def test_an_older_fence_is_refused(world):
    task = asyncio.create_task(world.session(fence=5).run())
    await world.until(lambda r: r.fence == 5)
    await kill(task)
    with pytest.raises(Stale, match="newer owner"):
        await world.session(fence=4, instance="t2").run()


async def test_a_finished_job_is_not_trained_again(world):
    for index in range(8):
        await world.group(index, version=max(0, index // 2 - 1))
    await finish(world.session())
    before = await world.record()
    assert await finish(world.session(instance="t2"))
    assert await world.record() == before


async def test_demonstrations_then_policy_in_one_job(world):
    warm = phase("warm", algorithm="sft", steps=2, groups=1, demo=True, publish=0)
    job_spec = spec(warm, phase("rl", steps=2, groups=1))
    await world.group(0, demo=True)
    await world.group(1, demo=True)
    task = asyncio.create_task(world.session(job_spec).run())
    record = await world.until(lambda r: r.phase == 1)
    assert (record.step, record.version, record.phase_step) == (
        2,
        1,
        0,
    )  # published only at the end of the phase
    await world.group(2, version=1, phase=1)
    await world.group(3, version=1, phase=1)
    assert await task
    assert [step.algorithm for step in await world.steps()] == ["sft", "sft", "grpo", "grpo"]


async def test_old_versions_are_deleted_and_version_zero_stays(world):
    for index in range(16):
        await world.group(index, version=max(0, index // 2 - 1))
    await finish(world.session(spec(phase(steps=8))))
    kept = sorted(int(p.name) for p in (world.directory / "policies" / JOB).iterdir() if p.name.isdigit())
    folders = [v for v in kept if list((world.directory / "policies" / JOB / f"{v:010d}").iterdir())]
    assert folders == [0, 5, 6, 7, 8]


async def test_a_store_that_stays_away_ends_the_session_with_unavailable(world, monkeypatch):
    async def down(*_args, **_kwargs):
        raise Unavailable("the log is away")

    session = world.session(patience_s=0.1)
    monkeypatch.setattr(world.log, "read", down)
    with pytest.raises(Unavailable):
        await session.run()


async def test_all_masked_groups_make_a_skipped_step_that_still_counts(world):
    for index in range(8):
        record = await world.group(index, version=max(0, index // 2 - 1), rewards=(1.0, float("nan")))
        assert len(record.samples) == 2
    await finish(world.session(spec(phase(steps=4))))
    steps = await world.steps()
    assert all(step.masked == {"NO_REWARD": 2} for step in steps)
    assert (await world.record()).consumed_groups == 8


async def test_what_a_record_names_is_never_overwritten(world):
    task = asyncio.create_task(world.session(instance="t1").run())
    first = await world.until(lambda r: r.version == 0)
    await kill(task)
    await (await world.bus.kv("policies")).delete(JOB)
    task = asyncio.create_task(world.session(instance="t2").run())
    second = await world.until(lambda r: r.trainer == "t2")
    await kill(task)
    assert await world.weights(first) == await world.weights(
        second
    )  # both manifests still match their checksums
