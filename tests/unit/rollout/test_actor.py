import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.unit.rollout.world import JOB, World, byte_codec, group, make_world

from temper.api.common.v1 import common_pb2 as common
from temper.api.job.v1.job_pb2 import Job, JobState
from temper.api.rollout.v1.rollout_pb2 import GroupRecord, GroupTable, PolicyLoaded
from temper.api.trainer.v1.trainer_pb2 import TrainingState
from temper.rollout import jobs
from temper.rollout.engine.base import Completion, FinishReason, Request, Sink
from temper.rollout.engine.fake import FakeEngine
from temper.rollout.players import PolicyPlayer
from temper.rollout.status import Status
from temper.rollout.trajectory import Trajectory
from temper.runtime.bus.base import DeadLetter
from temper.runtime.clock import SystemClock
from temper.runtime.errors import Exhausted, Unavailable
from temper.runtime.testing import MemoryPlatform, eventually


@pytest_asyncio.fixture
async def world(memory_platform: MemoryPlatform) -> AsyncIterator[World]:
    """On the real clock: nothing here waits for time to pass."""
    clock = SystemClock()
    bus = type(memory_platform.bus)(clock, name="rollout/w1")
    await bus.connect()
    made = await make_world(
        bus, type(memory_platform.log)(clock), memory_platform.directory, clock, retry_delay_s=0
    )
    made.start()
    yield made
    await made.stop()
    await bus.close()


async def left_in_queue(world: World) -> int:
    stream = world.bus.broker.streams["CMD"]  # the twin's own books
    return len(stream.messages)


async def test_a_group_becomes_one_table_and_one_record(world: World):
    await world.publisher.publish(0)
    await world.order(group(0))
    (record,) = await world.records()
    table = await world.table(record)
    assert record.group_id == table.group_id == f"{JOB}-0"
    assert len(record.samples) == len(table.samples) == 4
    assert record.worker == "w1"
    assert record.attempt == 1
    assert record.engine == "fake/2 hash"
    for sample, row in zip(record.samples, table.samples, strict=True):
        size = len(row.token_ids)
        assert size == sample.total_tokens == len(row.mask) == len(row.logprob_raw)
        assert size == len(row.logprob_processed) == len(row.log_surviving_mass)
        assert sum(row.mask) == sample.action_tokens
        assert row.versions[0].start == 0
        assert row.versions[-1].end == size
        assert row.token_ids[: row.prompt_tokens] == byte_codec().prompt("7+1=")


async def test_samples_of_a_group_differ_and_a_group_is_reproducible(world: World):
    await world.publisher.publish(0)
    await world.order(group(0))
    await world.order(group(1, seed=0))
    one, two = [await world.table(record) for record in await world.records(2)]
    rows = {tuple(row.token_ids) for row in one.samples}
    assert len(rows) > 1
    assert [list(row.token_ids) for row in one.samples] == [list(row.token_ids) for row in two.samples]


async def test_demonstrations_are_played_through_the_same_loop(world: World):
    await world.publisher.publish(0)
    order = group(0, purpose=common.PURPOSE_DEMO, tasks=(7, 8, 9, 3), samples=1)
    order.oracle_styles.extend(["tool", "direct", "wrong", "none"])
    await world.order(order)
    (record,) = await world.records()
    table = await world.table(record)
    codec = byte_codec()
    spoken = codec.call("7+1"), codec.answer("8")
    expected = codec.prompt("7+1=") + spoken[0] + codec.observation("8") + spoken[1]
    assert list(table.samples[0].token_ids) == expected
    assert [i for i, bit in enumerate(table.samples[0].mask) if bit] == [
        *range(len(codec.prompt("7+1=")), len(codec.prompt("7+1=")) + len(spoken[0])),
        *range(len(expected) - len(spoken[1]), len(expected)),
    ]
    classes = [sample.sample_class for sample in record.samples]
    assert classes[:2] == [common.SAMPLE_CLASS_SCORED] * 2
    assert classes[2:] == [common.SAMPLE_CLASS_AGENT_FAILED] * 2
    assert not any(table.samples[2].mask)
    assert record.engine == "oracle"
    assert world.policies.engines() == {}


async def test_nothing_is_left_behind(world: World):
    await world.publisher.publish(0)
    for index in range(5):
        await world.order(group(index))
    await world.records(5)
    await eventually(lambda: not world.worker.running and not world.host.live)
    assert await eventually_empty(world)
    stats = world.policies.engines()[JOB].stats()
    assert (stats.running, stats.kept, stats.kv_tokens) == (0, 0, 0)


async def eventually_empty(world: World) -> bool:
    async def empty() -> bool:
        return await left_in_queue(world) == 0

    return await eventually(empty)


async def test_a_group_waits_for_the_version_it_needs(world: World):
    await world.publisher.publish(0)
    await world.order(group(0, min_version=1))
    await world.order(group(1, min_version=0))
    (first,) = await world.records()
    assert first.index == 1
    await world.publisher.publish(1, seed=1)
    second = (await world.records(2))[1]
    assert second.index == 0
    assert {sample.min_version for sample in second.samples} == {1}


@pytest.mark.parametrize("spoil", ["checksum", "partial"])
async def test_a_spoilt_publication_is_refused_and_the_old_version_serves_on(world: World, spoil: str):
    await world.publisher.publish(0)
    await world.order(group(0))
    await world.records()
    await world.publisher.publish(1, spoil=spoil)
    await eventually(world.worker.complaints)
    await world.order(group(1))
    record = (await world.records(2))[1]
    assert {sample.max_version for sample in record.samples} == {0}
    status = Status(world.worker, world.policies, world.permits, world.metrics, world.clock, "fake")()
    assert status[f"version.{JOB}"] == 0
    assert str(status[f"problem.{JOB}"]).startswith("version 1: tensor")
    await world.publisher.publish(2)
    await eventually(lambda: not world.worker.complaints())


async def test_a_group_whose_version_will_not_load_waits_for_a_better_publication(world: World):
    await world.publisher.publish(0, spoil="checksum")
    await world.order(group(0))
    await eventually(world.worker.complaints)
    assert not world.worker.running
    await world.publisher.publish(0)
    (record,) = await world.records()
    assert record.attempt == 1


async def test_a_group_whose_version_never_comes_is_handed_back(memory_platform: MemoryPlatform):
    clock = memory_platform.clock
    world = await make_world(
        memory_platform.bus,
        memory_platform.log,
        memory_platform.directory,
        clock,
        version_wait_s=9,
        retry_delay_s=0,
    )
    world.start()
    await world.order(group(0))
    poisoned = asyncio.ensure_future(anext(world.bus.poisoned("rollout")))
    for _ in range(40):
        await clock.advance(1)
    assert (await poisoned).delivered == 3
    assert not world.worker.running
    await world.stop()


async def test_a_past_owner_of_the_job_is_not_listened_to(world: World):
    await world.publisher.publish(3, fence=5)
    await world.order(group(0))
    await world.records()
    await world.publisher.publish(4, fence=4, seed=9)
    await world.publisher.publish(2, fence=5, seed=9)
    await world.order(group(1))
    record = (await world.records(2))[1]
    assert {sample.max_version for sample in record.samples} == {3}


async def test_a_redelivery_leaves_one_record(world: World):
    await world.publisher.publish(0)
    await world.order(group(0))
    (record,) = await world.records()
    other = world.bus.client("rollout/w2")
    await other.connect()
    await other.command("temper.v1.cmd.rollout.job-1", group(0), id="again")
    assert await eventually_empty(world)
    found = await world.log.read("trajectories", key=JOB, timeout_s=0.1)
    assert [each.id for each in found] == [f"{JOB}-0"]
    assert found[0].message(GroupRecord).table == record.table
    assert await world.table(record)


async def test_engines_beyond_the_limit_make_room_for_others(world: World):
    for job in ("a", "b", "c"):
        await world.publisher.publish(0, job=job)
        order = group(0)
        order.job_id, order.group_id = job, f"{job}-0"
        await world.order(order)
        await world.log.read("trajectories", key=job, timeout_s=5)
    last = group(1)
    last.job_id, last.group_id = "c", "c-1"
    await world.order(last)
    await eventually(lambda: set(world.policies.engines()) == {"b", "c"})


async def test_what_cannot_be_read_goes_to_the_dead_letters(world: World):
    await world.bus.command("temper.v1.cmd.rollout.job-1", common.BlobRef(key="x"), id="odd")

    async def letters() -> list[DeadLetter]:
        return await world.bus.dead_letters()

    (letter,) = await eventually(letters)
    assert "BlobRef" in letter.reason


async def test_draining_finishes_what_runs(world: World):
    await world.publisher.publish(0)
    world.host.open.clear()
    await world.order(group(0))
    await eventually(lambda: world.host.calls)
    draining = asyncio.create_task(world.actor.drain())
    await eventually(world.tasks[1].done)
    await world.order(group(1))
    world.host.open.set()
    await draining
    assert [record.index for record in await world.records()] == [0]
    assert await left_in_queue(world) == 1


async def test_a_worker_that_is_cancelled_while_it_waits_for_work_ends_at_once(world: World):
    running = asyncio.create_task(world.actor.run())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):  # and nothing else: the command feed closes cleanly
        await running


async def test_draining_hands_back_what_has_not_begun(world: World):
    await world.order(group(0))
    await eventually(lambda: world.actor._admitting)
    await world.actor.drain()
    assert world.actor._admitting == set()
    assert await left_in_queue(world) == 1
    (message,) = world.bus.broker.streams["CMD"].messages.values()
    assert message.envelope.id == f"{JOB}-0"


async def test_a_worker_takes_no_more_groups_than_it_has_slots(memory_platform: MemoryPlatform):
    clock = memory_platform.clock
    bus = memory_platform.bus
    world = await make_world(bus, memory_platform.log, memory_platform.directory, clock, groups=2)
    world.start()
    for index in range(6):
        await world.order(group(index))
    await clock.advance(1)
    assert len(world.actor._tasks) == 2
    assert world.worker.running == {}
    await world.stop()


async def test_a_new_version_is_swapped_in_without_being_asked_for_and_told(world: World):
    told = world.bus.events("temper.v1.evt.rollout.>", after=0)
    await world.publisher.publish(0)
    await world.order(group(0))
    await world.records()
    await world.publisher.publish(1, seed=1)
    events = [(await anext(told)).message(PolicyLoaded) for _ in range(2)]
    assert [(event.worker, event.job_id, event.version) for event in events] == [
        ("w1", JOB, 0),
        ("w1", JOB, 1),
    ]
    assert world.policies.engines()[JOB].stats().version == 1
    await told.aclose()


async def test_what_storage_refuses_for_a_while_is_stored_later(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    put, failures = world.blobs.put, [Unavailable("away"), Exhausted("full")]

    async def flaky(key: str, data: bytes):
        if key.startswith("groups/") and failures:
            raise failures.pop()
        return await put(key, data)

    await world.publisher.publish(0)
    monkeypatch.setattr(world.blobs, "put", flaky)
    await world.order(group(0))
    (record,) = await world.records()
    assert failures == []
    assert record.attempt == 1


async def test_an_engine_that_dies_is_replaced(world: World):
    await world.publisher.publish(0)
    await world.order(group(0))
    await world.records()
    await world.policies.engines()[JOB].close()
    await world.order(group(1))
    second = (await world.records(2))[1]
    assert second.attempt == 2
    assert {sample.sample_class for sample in second.samples} <= {
        common.SAMPLE_CLASS_SCORED,
        common.SAMPLE_CLASS_AGENT_FAILED,
    }


async def test_an_engine_that_died_is_replaced_by_the_next_publication_too(world: World):
    """Nobody plays meanwhile, so nobody but the loading notices."""
    await world.publisher.publish(0)
    await world.order(group(0))
    await world.records()
    dead = world.policies.engines()[JOB]
    await dead.close()
    await world.publisher.publish(1)
    await world.order(group(1, min_version=1))
    second = (await world.records(2))[1]
    assert second.attempt == 1
    assert world.policies.engines()[JOB] is not dead


async def end_job(world: World, state: JobState) -> None:
    await (await world.bus.kv("jobs")).put(JOB, Job(id=JOB, state=state).SerializeToString())


@pytest.mark.parametrize("state", [JobState.JOB_STATE_CANCELLED, JobState.JOB_STATE_FAILED])
async def test_queued_groups_of_a_job_that_has_ended_leave_the_queue_without_an_effect(
    world: World, state: JobState
):
    await world.publisher.publish(0)
    await end_job(world, state)
    for index in range(40):
        await world.order(group(index, min_version=9))  # a version that will never come
    assert await eventually_empty(world)
    assert await world.bus.dead_letters() == []
    assert await world.log.end("trajectories", JOB) is None
    assert world.host.calls == []


async def test_groups_that_play_when_their_job_is_cancelled_stop_and_give_everything_back(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(jobs, "LOOK_S", 0.02)
    await world.publisher.publish(0)
    reached, never = asyncio.Event(), asyncio.Event()

    async def stuck(*_: object) -> FinishReason:
        reached.set()
        await never.wait()
        raise AssertionError

    monkeypatch.setattr(PolicyPlayer, "act", stuck)
    for index in range(3):
        await world.order(group(index))
    await reached.wait()
    await end_job(world, JobState.JOB_STATE_CANCELLED)
    assert await eventually_empty(world)
    await eventually(lambda: not world.worker.running and not world.actor._serving)
    assert not world.host.live
    assert world.permits.in_use == 0
    assert await world.bus.dead_letters() == []
    assert await world.log.end("trajectories", JOB) is None


async def test_the_sandbox_of_a_stopped_episode_is_released(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jobs, "LOOK_S", 0.02)
    await world.publisher.publish(0)
    acted, never = asyncio.Event(), asyncio.Event()

    async def calls_once_then_hangs(self: object, trajectory: Trajectory, context: list[int], _: int):
        if trajectory.turns:
            acted.set()
            await never.wait()
        trajectory.add_demonstration(context, byte_codec().call("7+1"), 0)
        return FinishReason.STOP

    monkeypatch.setattr(PolicyPlayer, "act", calls_once_then_hangs)
    await world.order(group(0))
    await acted.wait()
    await end_job(world, JobState.JOB_STATE_CANCELLED)
    assert await eventually_empty(world)
    assert not world.host.live
    assert world.host.calls


async def test_other_jobs_play_on_when_one_is_cancelled(world: World):
    await world.publisher.publish(0)
    await world.publisher.publish(0, job="other")
    await end_job(world, JobState.JOB_STATE_CANCELLED)
    order = group(0)
    order.job_id, order.group_id = "other", "other-0"
    await world.order(group(0))
    await world.order(order)
    assert await eventually_empty(world)
    assert await world.log.end("trajectories", JOB) is None
    assert await world.log.end("trajectories", "other") is not None


async def play_across_a_swap(world: World, policy: str) -> tuple[GroupRecord, GroupTable, PolicyLoaded]:
    """One group whose first turns have begun under version 0 and end after version 1 was swapped in."""
    told = world.bus.events("temper.v1.evt.rollout.>", after=0)
    await world.publisher.publish(0, swap_policy=policy)
    await world.order(group(0))
    await world.records()
    engine = world.policies.engines()[JOB]
    await engine.pause()
    await world.order(group(1, max_staleness=3))
    await eventually(lambda: engine.stats().waiting + engine.stats().running == 4)
    await world.publisher.publish(1, seed=1, swap_policy=policy)
    if policy == "wait":
        await engine.resume()
    await eventually(lambda: world.worker.jobs[JOB].served == 1)
    await engine.resume()
    record = (await world.records(2))[1]
    _, loaded = [(await anext(told)).message(PolicyLoaded) for _ in range(2)]
    await told.aclose()
    return record, await world.table(record), loaded


@pytest.mark.parametrize("policy", ["keep", "recompute", "requeue", "abort", "wait"])
async def test_vllm_46125_a_job_says_what_an_update_does_to_what_runs_and_it_is_told(
    world: World, policy: str
):
    record, table, loaded = await play_across_a_swap(world, policy)
    assert loaded.version == 1
    assert loaded.swap_policy == record.swap_policy == policy
    for sample, row in zip(record.samples, table.samples, strict=True):
        assert sample.sample_class in (common.SAMPLE_CLASS_SCORED, common.SAMPLE_CLASS_AGENT_FAILED)
        assert row.weight_versions[-1].end == sample.action_tokens
    if policy == "abort":
        assert {sample.restarts for sample in record.samples} <= {0, 1}
    else:
        assert {sample.restarts for sample in record.samples} == {0}


async def test_an_unknown_swap_policy_is_refused_and_the_old_version_serves_on(world: World):
    await world.publisher.publish(0)
    await world.order(group(0))
    await world.records()
    await world.publisher.publish(1, seed=1, swap_policy="sometimes")
    said = await eventually(world.worker.complaints)
    assert "sometimes" in said[JOB]
    assert world.worker.jobs[JOB].served == 0


async def test_a_worker_past_the_staleness_bound_fetches_nothing_and_its_presence_says_why(world: World):
    await world.publisher.publish(0)
    await world.order(group(0, max_staleness=0))
    await world.records()
    await world.publisher.publish(1, spoil="checksum")
    await eventually(world.worker.complaints)
    await world.order(group(1, max_staleness=0))
    await world.order(group(2, max_staleness=0))
    await eventually(world.worker.refuses)
    status = Status(world.worker, world.policies, world.permits, world.metrics, world.clock, "fake")()
    assert status[f"stale.{JOB}"] == "serves version 0, 1 is published, the staleness bound is 0"
    assert "checksum" in str(status[f"problem.{JOB}"])
    await world.publisher.publish(2, seed=2)
    assert sorted(record.index for record in await world.records(3)) == [0, 1, 2]  # two play at once


async def test_a_record_and_its_table_say_how_the_numbers_were_made(world: World):
    await world.publisher.publish(0)
    await world.order(group(3))
    (record,) = await world.records()
    table = await world.table(record)
    assert (record.engine_identity.name, record.engine_identity.numeric) == ("fake", "hash")
    assert table.engine == record.engine_identity
    assert (table.sampling.temperature, table.sampling.max_tokens_per_turn) == (1.0, 32)
    assert tuple(table.sampling.stop_token_ids) == byte_codec().stops
    for stream, (sample, row) in enumerate(zip(record.samples, table.samples, strict=True)):
        assert (row.seed, row.stream, row.attempt) == (3, stream, 1)
        assert row.turns[-1].finish_reason == common.FINISH_REASON_STOP
        assert row.turns[-1].stop_token == sample.stop_token == byte_codec().stops[0]
        assert (row.attention, row.for_training, sample.for_training) == ("dense", True, True)
        assert sample.kv_origin_lag == 0
        assert sample.cached_tokens == sum(turn.cached_tokens for turn in row.turns)


async def test_presence_tells_how_many_episodes_may_play(world: World):
    await world.publisher.publish(0)
    await world.order(group(0))
    await world.records()
    await eventually(lambda: not world.worker.running)
    status = Status(world.worker, world.policies, world.permits, world.metrics, world.clock, "fake")()
    seen = {name: status[name] for name in ("episodes_allowed", "episodes_playing", "episodes_waiting")}
    assert seen == {"episodes_allowed": 256, "episodes_playing": 0, "episodes_waiting": 0}
    assert status["kv_pressure"] == "grow"


async def test_a_job_that_is_over_leaves_no_partial_samples(world: World):
    for job in (JOB, "other"):
        await world.blobs.put(f"partials/{job}/{job}-0/0-0.binpb", b"")
    await world.publisher.publish(0, state=TrainingState.TRAINING_STATE_FINISHED)

    async def left() -> bool:
        return [ref.key async for ref in world.blobs.list("partials")] == ["partials/other/other-0/0-0.binpb"]

    assert await eventually(left)


async def set_job(world: World, state: JobState) -> None:
    await (await world.bus.kv("jobs")).put(JOB, Job(id=JOB, state=state).SerializeToString())


async def test_a_paused_jobs_groups_rest_with_their_engine_and_go_on_afterwards(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(jobs, "LOOK_S", 0.02)
    await world.publisher.publish(0)
    await world.order(group(0))
    await world.records()
    engine = world.policies.engines()[JOB]
    world.host.open.clear()
    await world.order(group(1))
    await eventually(lambda: world.host.calls.count("materialize") == 2)
    await set_job(world, JobState.JOB_STATE_PAUSED)
    await eventually(lambda: engine.stats().paused and not world.worker.running)
    world.host.open.set()
    assert await left_in_queue(world) == 1
    assert not world.host.live
    await set_job(world, JobState.JOB_STATE_RUNNING)
    record = (await world.records(2))[1]
    assert (record.index, record.attempt) == (1, 1)
    assert not engine.stats().paused
    # A session that was given up is not taken up again: the second making has names of its own.
    assert all("/1-1." in name for name in world.host.answers if name.startswith(f"{JOB}-1/"))


async def test_paused_groups_leave_half_of_the_slots_to_other_jobs(
    memory_platform: MemoryPlatform, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(jobs, "LOOK_S", 0.02)
    clock = SystemClock()
    bus = type(memory_platform.bus)(clock, name="rollout/w1")
    await bus.connect()
    world = await make_world(
        bus, type(memory_platform.log)(clock), memory_platform.directory, clock, groups=2
    )
    await set_job(world, JobState.JOB_STATE_PAUSED)
    await world.publisher.publish(0)
    await world.publisher.publish(0, job="other")
    for index in range(3):
        await world.order(group(index))
    world.start()
    await world.records(2)  # with more than half of the slots taken, groups are played to their end
    other = group(9)
    other.job_id, other.group_id = "other", "other-9"
    await world.order(other)
    (record,) = await eventually(lambda: world.log.read("trajectories", key="other", timeout_s=5))
    assert record.message(GroupRecord).group_id == "other-9"
    await world.stop()  # a held group does not keep a worker from going
    await bus.close()


async def test_samples_that_no_trainer_will_take_any_more_are_stopped(world: World):
    await world.publisher.publish(0)
    await world.order(group(0))
    await world.records()
    engine = world.policies.engines()[JOB]
    await engine.pause()
    await world.order(group(1, max_staleness=0))
    await eventually(lambda: engine.stats().waiting + engine.stats().running == 4)
    await world.publisher.publish(1, seed=1)
    record = (await world.records(2))[1]
    assert {sample.sample_class for sample in record.samples} == {common.SAMPLE_CLASS_STALE}
    assert not any(sample.HasField("reward") for sample in record.samples)


async def test_samples_of_a_rejected_line_are_stopped_whatever_their_age(world: World):
    await world.publisher.publish(0)
    await world.order(group(0))
    await world.records()
    engine = world.policies.engines()[JOB]
    await engine.pause()
    await world.order(group(1, max_staleness=9))
    await world.order(group(2))
    await eventually(lambda: engine.stats().waiting + engine.stats().running == 8)
    await world.publisher.publish(1, seed=1, line_start=1)
    record = (await world.records(2))[1]
    assert record.index == 1
    assert {sample.sample_class for sample in record.samples} == {common.SAMPLE_CLASS_STALE}
    assert record.drop_reason == common.DROP_REASON_ROLLED_BACK
    await engine.resume()
    evaluation = (await world.records(3))[2]  # no bound: it is not for training
    assert evaluation.index == 2
    assert common.SAMPLE_CLASS_STALE not in {sample.sample_class for sample in evaluation.samples}
    assert evaluation.drop_reason == common.DROP_REASON_UNSPECIFIED


async def test_requests_carry_their_group_their_job_and_the_delivery(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    asked: list[Request] = []
    submit = FakeEngine.submit

    def note(self: FakeEngine, request: Request, sink: Sink | None = None) -> asyncio.Future[Completion]:
        asked.append(request)
        return submit(self, request, sink)

    monkeypatch.setattr(FakeEngine, "submit", note)
    await world.publisher.publish(0)
    await world.order(group(0))
    await world.records()
    assert {(each.group, each.tenant, each.attempt) for each in asked} == {(f"{JOB}-0", JOB, 1)}
    assert {each.sample_index for each in asked} == {0, 1, 2, 3}
