"""What a restart may and may not do: go on from the nearest whole cut, skip nobody, train on nobody twice, and say what is odd.

And what overlaps: a step is computed while the one before it is told and the groups of the one after it are fetched.
"""

import asyncio
import errno
import threading

import pytest
from tests.unit.trainer.test_session import GROUPS, finish, kill
from tests.unit.trainer.world import JOB, model, phase, spec

from temper.api.job.v1.job_pb2 import JobEvent
from temper.api.trainer.v1.trainer_pb2 import StepRecord, TrainingState
from temper.runtime.blobs import BlobStore
from temper.runtime.errors import Unavailable
from temper.runtime.testing import eventually
from temper.trainer.config import SnapshotsConfig
from temper.trainer.engine.base import EngineState
from temper.trainer.engine.fake import FakeEngine
from temper.trainer.engine.torch import make as torch_engine
from temper.trainer.plan import model_config
from temper.trainer.resumption import Resumption
from temper.trainer.snapshot import Snapshot, Snapshots

FINISHED = TrainingState.TRAINING_STATE_FINISHED


async def give(world, groups):
    for index, more in groups:
        await world.group(index, **more)


async def started(world, job_spec, step, *, engine=None, instance="t1"):
    """A session in its own task that has announced a step."""
    task = asyncio.create_task(world.session(job_spec, engine=engine, instance=instance).run())
    await world.until(lambda r: r.step >= step)
    return task


async def notices(world):
    records = await world.log.read("jobs", key=JOB, timeout_s=0.01)
    return {n.code: n.message for n in (record.message(JobEvent).notice for record in records)}


def count(world, name, **labels):
    return world.registry.get_sample_value(name, labels)


# ------------------------------------------------------------- levels


@pytest.fixture
def near(world, tmp_path):
    world.snapshots = SnapshotsConfig(memory_dir=str(tmp_path / "memory"), disk_dir=str(tmp_path / "disk"))
    return world


class Counting(FakeEngine):
    """Counts the steps that it makes."""

    def __init__(self):
        super().__init__()
        self.steps = 0

    def step(self, batch, algorithm, settings, optimizer):
        self.steps += 1
        return super().step(batch, algorithm, settings, optimizer)


async def test_a_snapshot_in_memory_saves_the_steps_since_the_one_in_the_store(near, tmp_path):
    job_spec = spec(phase(steps=6, snapshot=100))
    await give(near, GROUPS[:8])
    task = await started(near, job_spec, 4)
    kept = Snapshots(BlobStore((tmp_path / "memory").as_uri()), JOB)
    await eventually(kept.steps)
    await kill(task)
    at = (await kept.steps())[0]
    counted = Counting()
    await give(near, GROUPS[8:])
    assert await finish(near.session(job_spec, engine=counted, instance="t2"))
    assert counted.steps == 6 - at
    assert (await near.record()).consumed_groups == 12


async def test_a_full_disk_costs_snapshots_and_not_the_job(near, tmp_path, monkeypatch):
    job_spec, put = spec(phase(steps=6)), BlobStore._put
    await give(near, GROUPS[:4])
    task = await started(near, job_spec, 2)
    memory = Snapshots(BlobStore((tmp_path / "memory").as_uri()), JOB)
    await eventually(memory.steps)

    def full(store, key, data):
        if key.startswith("snapshots/") and key.endswith(".optimizer.safetensors"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return put(store, key, data)

    monkeypatch.setattr(BlobStore, "_put", full)
    engine_files = EngineState({"weights.safetensors": b"w", "optimizer.safetensors": b"o"})
    monkeypatch.setattr(FakeEngine, "snapshot", lambda _: engine_files)
    before = await memory.steps()
    await give(near, GROUPS[4:8])
    await near.until(lambda r: r.step == 4)
    await eventually(lambda: count(near, "temper_trainer_alarms_total", kind="snapshot_failed"))
    assert (await memory.steps())[-1] in before  # the old ones are kept
    names = {path.name for path in (tmp_path / "memory/snapshots" / JOB).rglob("*.weights.safetensors")}
    assert all(name.partition(".")[0] for name in names)
    await give(near, GROUPS[8:])
    assert await task
    assert "is full" in (await notices(near))["snapshot_failed"]
    assert count(near, "temper_trainer_snapshots_total", level="memory", outcome="failed") >= 1


async def test_the_snapshots_of_all_levels_go_when_the_job_is_over(near, tmp_path):
    await give(near, GROUPS)
    assert await finish(near.session(spec(phase(steps=6))))
    for level in ("memory", "disk", "objects"):
        assert await Snapshots(BlobStore((tmp_path / level).as_uri()), JOB).steps() == []


async def test_a_snapshot_of_another_vocabulary_is_refused_by_name_and_the_job_begins_anew(world):
    other = dict(model_config(model(vocab_size=264)))
    engine = FakeEngine()
    engine.build(other, seed=1)
    await Snapshots(world.blobs, JOB).save(Snapshot(9, engine.snapshot(), other, {}))
    await give(world, GROUPS)
    assert await finish(world.session(spec(phase(steps=6))))
    assert (await world.record()).step == 6
    assert "vocab_size 264 for 40" in (await notices(world))["snapshot_broken"]


async def test_a_snapshot_whose_weights_do_not_fit_is_refused_and_the_one_before_it_is_used(world):
    job_spec = spec(phase(steps=6))
    await give(world, GROUPS[:6])
    task = await started(world, job_spec, 3, engine=torch_engine())
    kept = Snapshots(world.blobs, JOB)
    await eventually(kept.steps)
    await kill(task)
    newest = await kept.load((await kept.steps())[0])
    larger = torch_engine()
    larger.build(model_config(model(intermediate_size=64)), seed=1)
    await kept.save(Snapshot(newest.step, larger.snapshot(), newest.config, newest.facts))
    await give(world, GROUPS[6:])
    assert await finish(world.session(job_spec, engine=torch_engine(), instance="t2"))
    assert "has shape" in (await notices(world))["snapshot_broken"]
    assert (await world.record()).consumed_groups == 12


async def test_a_snapshot_that_is_ahead_of_what_was_announced_is_refused(world):
    job_spec = spec(phase(steps=6))
    await give(world, GROUPS[:4])
    task = await started(world, job_spec, 2)
    kept = Snapshots(world.blobs, JOB)
    await eventually(kept.steps)
    await kill(task)
    newest = await kept.load((await kept.steps())[0])
    await kept.save(Snapshot(5, newest.engine, newest.config, newest.facts))
    await give(world, GROUPS[4:])
    assert await finish(world.session(job_spec, instance="t2"))
    assert "last announced step is 2" in (await notices(world))["snapshot_broken"]
    assert [step.step for step in await world.steps()] == [1, 2, 3, 4, 5, 6]


# ------------------------------------------------------------- books


async def test_a_step_record_of_a_trainer_that_lost_the_race_counts_for_nothing(world):
    job_spec = spec(phase(steps=6, eta=8))
    await give(world, GROUPS[:4])
    await kill(await started(world, job_spec, 2))
    lost = StepRecord(job_id=JOB, step=3, group_ids=[f"{JOB}-10", f"{JOB}-11"], trainer="t0")
    await world.log.append("steps", JOB, lost, id="lost")
    await give(world, GROUPS[4:])
    assert await finish(world.session(job_spec, instance="t2"))
    trained = [list(step.group_ids) for step in await world.steps() if step.trainer != "t0"]
    assert trained == [[f"{JOB}-{2 * n}", f"{JOB}-{2 * n + 1}"] for n in range(6)]
    assert (await world.record()).consumed_groups == 12


async def test_killed_between_the_policy_record_and_the_step_record_the_step_is_made_again(
    world, monkeypatch
):
    job_spec = spec(phase(steps=6))
    await give(world, GROUPS[:6])
    append = world.log.append

    async def dying(topic, key, message, **more):
        if topic == "steps" and message.step == 3:
            await asyncio.Event().wait()
        return await append(topic, key, message, **more)

    monkeypatch.setattr(world.log, "append", dying)
    await kill(await started(world, job_spec, 3))
    monkeypatch.setattr(world.log, "append", append)
    assert [step.step for step in await world.steps()] == [1, 2]
    await give(world, GROUPS[6:])
    assert await finish(world.session(job_spec, instance="t2"))
    steps = await world.steps()
    assert [step.step for step in steps] == [1, 2, 3, 4, 5, 6]
    assert list(steps[2].group_ids) == [f"{JOB}-4", f"{JOB}-5"]


async def test_a_group_that_was_told_as_dropped_stays_dropped_after_a_restart(world, tmp_path):
    job_spec = spec(phase(steps=4, groups=1, eta=1, snapshot=100))
    task = await started(world, job_spec, 0)
    elsewhere = type(world)(tmp_path / "elsewhere", world.bus.client("elsewhere"))
    unreadable = await elsewhere.group(0)
    await world.append(unreadable)
    await world.until(lambda r: r.dropped_groups["DROP_REASON_CORRUPT"] == 1)
    await kill(task)
    data = await elsewhere.blobs.get(unreadable.table)
    await world.blobs.put(
        unreadable.table.key, data
    )  # it would be readable now, but its credit was given back
    for index in range(1, 5):
        await world.group(index, version=max(0, index - 2))
    assert await finish(world.session(job_spec, instance="t2"))
    record = await world.record()
    assert record.dropped_groups == {"DROP_REASON_CORRUPT": 1}
    assert record.consumed_groups == 4
    assert f"{JOB}-0" not in [group for step in await world.steps() for group in step.group_ids]


@pytest.mark.parametrize("kills", [1, 3])
async def test_nemo_rl_3599_long_rollouts_in_flight_at_a_kill_are_neither_skipped_nor_trained_on_twice(
    world, kills
):
    """Every third group takes long: it comes when others of its age are trained on, and behind the kill."""
    job_spec = spec(phase(steps=12, groups=2, eta=16, snapshot=3))
    long = [index for index in range(24) if index % 3 == 0]
    coming = [index for index in range(24) if index % 3] + long
    given = 0
    for life in range(kills):
        share = coming[given : (life + 1) * 20 // kills]
        for index in share:
            await world.group(index)
        given += len(share)
        await kill(await started(world, job_spec, given // 2 - 1, instance=f"t{life}"))
    for index in coming[given:]:
        await world.group(index)
    assert await finish(world.session(job_spec, instance="last"))
    record = await world.record()
    trained = [group for step in await world.steps() for group in step.group_ids]
    assert sorted(trained) == sorted(f"{JOB}-{index}" for index in range(24))
    assert (record.consumed_groups, dict(record.dropped_groups)) == (24, {})
    assert [(span.first, span.last) for span in record.settled] == [(0, 23)]


# ------------------------------------------------------------- the first steps after a restart


class Drifting(FakeEngine):
    """Reports how far it is from the rollout engine."""

    def __init__(self, mismatch, loss=1.0):
        super().__init__()
        self.said = {"mismatch_abs": mismatch, "loss": loss}

    def step(self, batch, algorithm, settings, optimizer):
        outcome = super().step(batch, algorithm, settings, optimizer)
        return type(outcome)({**outcome.metrics, **self.said}, outcome.tokens, outcome.total_tokens)


@pytest.mark.parametrize(("after", "alarmed"), [(0.011, False), (0.09, True)])
async def test_slime_1695_the_first_step_after_a_restart_is_compared_with_the_step_before(
    world, after, alarmed
):
    job_spec = spec(phase(steps=6))
    await give(world, GROUPS[:6])
    session = world.session(job_spec, engine=Drifting(0.01))
    task = asyncio.create_task(session.run())
    await world.until(lambda r: r.step == 3)
    session.stop()
    assert not await task
    await give(world, GROUPS[6:])
    assert await finish(world.session(job_spec, engine=Drifting(after), instance="t2"))
    said = await notices(world)
    assert ("resumption" in said) == alarmed
    if alarmed:
        assert "step 4, the first after the restart" in said["resumption"]


async def test_a_step_that_is_made_again_and_gives_something_else_is_told(world):
    job_spec = spec(phase(steps=6, snapshot=100))
    await give(world, GROUPS[:6])
    await kill(await started(world, job_spec, 3, engine=Drifting(0.01, loss=0.5)))
    await give(world, GROUPS[6:])
    assert await finish(world.session(job_spec, engine=Drifting(0.01, loss=0.7), instance="t2"))
    assert "its loss is 0.7 instead of 0.5" in (await notices(world))["resumption"]


def test_a_resumption_has_its_say_once():
    watch = Resumption({"mismatch_abs": 0.01}, {4: {"loss": 1.0}, 5: {"loss": 2.0, "mismatch_abs": 0.01}})
    assert watch.problem(4, {"loss": 1.0}) == ""
    assert "step 5 was made again" in watch.problem(5, {"loss": 2.5})
    assert "first after the restart" in watch.problem(6, {"mismatch_abs": 0.2})
    assert watch.problem(7, {"mismatch_abs": 0.9}) == ""
    assert Resumption().problem(1, {"mismatch_abs": 0.9}) == ""


# ------------------------------------------------------------- what overlaps


class Held(FakeEngine):
    """Counts its steps, and stays in one of them until it is let go."""

    def __init__(self, held=0):
        super().__init__()
        self.steps, self.held, self.go = 0, held, threading.Event()

    def step(self, batch, algorithm, settings, optimizer):
        self.steps += 1
        if self.steps == self.held:
            assert self.go.wait(60)
        return super().step(batch, algorithm, settings, optimizer)


async def test_a_step_is_computed_while_the_one_before_it_is_published(world, monkeypatch):
    put, go, engine = world.blobs.put, asyncio.Event(), Held()

    async def slow(key, data):
        if f"policies/{JOB}/0000000001/" in key:
            await go.wait()
        return await put(key, data)

    monkeypatch.setattr(world.blobs, "put", slow)
    await give(world, GROUPS)
    task = asyncio.create_task(world.session(spec(phase(steps=6, eta=8)), engine=engine).run())
    await eventually(lambda: engine.steps == 2)
    record = await world.record()
    assert record is not None
    assert record.step == 0  # nothing of the first step is told yet, so nothing of the second may be
    go.set()
    assert await task
    assert [step.version for step in await world.steps()] == [1, 2, 3, 4, 5, 6]


async def test_groups_of_the_next_step_are_fetched_while_a_step_is_computed(world, monkeypatch):
    get, fetched, engine = world.blobs.get, [], Held(held=1)

    async def noting(ref):
        fetched.append(ref.key)
        return await get(ref)

    monkeypatch.setattr(world.blobs, "get", noting)
    await give(world, GROUPS[:3])
    task = asyncio.create_task(world.session(spec(phase(steps=2)), engine=engine).run())
    await eventually(lambda: engine.steps == 1)
    await give(world, GROUPS[3:5])  # one of them comes while the step is computed
    wanted = {f"groups/{JOB}/{JOB}-{index}.binpb" for index in range(4)}
    await eventually(lambda: wanted <= set(fetched))
    assert engine.steps == 1
    engine.go.set()
    assert await task
    tables = [key for key in fetched if key.startswith("groups/")]
    assert sorted(tables) == sorted(wanted)  # each once, and none that no step needs


async def test_a_group_over_the_bound_of_the_next_step_is_not_fetched_ahead(world, monkeypatch):
    get, fetched, engine = world.blobs.get, [], Held(held=1)

    async def noting(ref):
        fetched.append(ref.key)
        return await get(ref)

    monkeypatch.setattr(world.blobs, "get", noting)
    await give(world, [(index, {"version": 0}) for index in range(3)])
    task = asyncio.create_task(world.session(spec(phase(steps=2, groups=1, eta=0)), engine=engine).run())
    await eventually(lambda: engine.steps == 1)
    engine.go.set()
    record = await world.until(lambda r: r.dropped_groups["DROP_REASON_STALE"] == 2)
    assert record.step == 1
    assert [key for key in fetched if key.startswith("groups/")] == [f"groups/{JOB}/{JOB}-0.binpb"]
    await kill(task)


async def test_trouble_with_telling_a_step_ends_the_session_while_it_waits_for_groups(world, monkeypatch):
    async def away(*_args, **_more):
        raise Unavailable("the log is away")

    await give(world, GROUPS[:2])
    monkeypatch.setattr(world.log, "append", away)
    with pytest.raises(Unavailable, match="the log is away"):
        await finish(world.session(spec(phase(steps=6)), patience_s=0.1))
    assert (await world.record()).step == 1


async def test_the_idle_share_is_time_in_which_no_step_is_computed(world):
    await give(world, GROUPS)
    await finish(world.session(spec(phase(steps=6))))
    record = await world.record()
    assert 0 < record.idle_share < 1
    assert count(world, "temper_trainer_idle_share") == record.idle_share
