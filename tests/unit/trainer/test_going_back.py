"""Rollbacks in the trainer: which state comes back, what becomes of the groups of the rejected line, and what a crash changes (nothing)."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.trainer.world import JOB, phase, spec

from temper.api.job.v1.job_pb2 import GateRecord
from temper.runtime.blobs import BlobStore
from temper.runtime.errors import Exhausted
from temper.runtime.testing import eventually
from temper.trainer.engine.base import EngineState
from temper.trainer.engine.fake import FakeEngine
from temper.trainer.milestones import ACCEPTED, UNJUDGED, Milestones, superfluous
from temper.trainer.snapshot import Snapshot, Snapshots
from temper.trainer.state import Arrival, Drop, Ledger, Phase


class Slow(FakeEngine):
    """Remembers the learning rates that it was given."""

    def __init__(self):
        super().__init__()
        self.rates = []

    def step(self, batch, algorithm, settings, optimizer):
        self.rates.append(optimizer.lr)
        return super().step(batch, algorithm, settings, optimizer)


def gated(*phases, every=2, lr_factor=0.0):
    made = spec(*(phases or [phase(steps=8, groups=1, snapshot=3)]))
    made.eval.every = every
    made.gates.action = "rollback"
    made.gates.lr_factor = lr_factor
    return made


async def order(world, number, step, *, fence=1, held=()):
    record = GateRecord(
        job_id=JOB, fence=fence, accepted_step=step, rollbacks=number, rollback_step=step, held_versions=held
    )
    bucket = await world.bus.kv("jobs")
    entry = await bucket.get(f"{JOB}.gate")
    value = record.SerializeToString()
    await (
        bucket.update(f"{JOB}.gate", value, entry.revision) if entry else bucket.create(f"{JOB}.gate", value)
    )


async def kill(task):
    task.cancel()
    await asyncio.wait({task})


async def weights_at(world, versions):
    """Published bytes of each of these versions, as training passes them."""
    return {
        version: await world.weights(await world.until(lambda r, v=version: r.version == v))
        for version in versions
    }


async def trained(world, session, upto):
    """A running session that has taken `upto` steps of one group each; and the weights of each version."""
    task = asyncio.create_task(session.run())
    seen = {0: await world.weights(await world.until(lambda r: True))}
    for index in range(upto):
        await world.group(index, version=index)
        record = await world.until(lambda r, n=index + 1: r.step == n)
        seen[record.version] = await world.weights(record)
    return task, seen


async def test_the_accepted_state_comes_back_as_a_new_version_in_the_place_of_a_step(world):
    engine = Slow()
    task, seen = await trained(world, world.session(gated(lr_factor=0.5), engine=engine), 3)
    await order(world, 1, 2)
    record = await world.until(lambda r: r.rollbacks == 1)
    assert (record.version, record.step, record.line_start, record.restored_step) == (4, 4, 4, 2)
    assert await world.weights(record) == seen[2] != seen[3]
    await world.group(3, version=4)
    await world.until(lambda r: r.step == 5)
    assert engine.rates == [0.01, 0.01, 0.01, 0.005], "the learning rate is halved by each rollback"
    steps = {step.step: step for step in await world.steps()}
    assert steps[4].skipped
    assert (steps[4].restored_step, steps[4].rollbacks, list(steps[4].group_ids)) == (2, 1, [])
    assert not steps[5].HasField("restored_step")
    await kill(task)


async def test_groups_of_the_rejected_line_are_dropped_by_name_and_the_books_balance(world):
    task, _ = await trained(world, world.session(gated()), 3)
    await order(world, 1, 2)
    await world.until(lambda r: r.rollbacks == 1)
    await world.group(3, version=3)  # one version behind, which staleness would allow
    await world.group(4, version=4)
    record = await world.until(lambda r: r.step == 5)
    assert record.dropped_groups == {"DROP_REASON_ROLLED_BACK": 1}
    assert record.consumed_groups == 4
    assert [(each.first, each.last) for each in record.settled] == [(0, 4)]
    await kill(task)


async def test_without_a_milestone_the_initial_policy_comes_back(world):
    task, seen = await trained(world, world.session(gated(every=7)), 2)
    await order(world, 1, 0)
    record = await world.until(lambda r: r.rollbacks == 1)
    assert record.restored_step == 0
    assert await world.weights(record) == seen[0]
    await kill(task)


async def test_the_initial_policy_comes_back_without_the_reward_scale_of_the_rejected_line(world):
    choices = {"advantage": "rloo", "reward_scale": "running_std"}
    scaled = phase(steps=8, groups=1, snapshot=3, algorithm_choices=choices)
    task, _ = await trained(world, world.session(gated(scaled, every=7)), 2)
    await order(world, 1, 0)
    await world.until(lambda r: r.rollbacks == 1)
    snapshots = Snapshots(world.blobs, JOB)

    async def kept():
        return await snapshots.steps() == [3]

    await eventually(kept)
    assert (await snapshots.load(3)).facts["reward_scale"] == {"mean": {}, "square": {}}
    await kill(task)


async def test_an_order_is_carried_out_once_by_however_many_trainers(world):
    task, _ = await trained(world, world.session(gated()), 3)
    await order(world, 1, 2)
    await world.until(lambda r: r.rollbacks == 1)
    await kill(task)
    task = asyncio.create_task(world.session(gated(), instance="t2").run())
    await world.group(3, version=4)
    record = await world.until(lambda r: r.step == 5)
    assert (record.rollbacks, record.version, record.recoveries) == (1, 5, 1)
    await kill(task)


async def test_an_order_of_a_replaced_actor_is_not_listened_to(world):
    task, _ = await trained(world, world.session(gated()), 3)
    await order(world, 0, 2, fence=5)
    await order(world, 1, 2, fence=4)
    await order(world, 1, 2, fence=6)
    await world.until(lambda r: r.rollbacks == 1)
    await kill(task)


async def test_orders_that_cannot_be_read_are_passed_over_and_the_next_ones_are_carried_out(world):
    await (await world.bus.kv("jobs")).put(f"{JOB}.gate", b"\xff")
    task, _ = await trained(world, world.session(gated()), 3)
    await order(world, 1, 2)
    await world.until(lambda r: r.rollbacks == 1)
    await kill(task)


def milestone(step):
    return Snapshot(step, EngineState({"weights.safetensors": bytes([step])}), {}, {})


async def test_where_a_milestone_is_torn_the_one_before_comes_back(tmp_path):
    blobs = BlobStore(tmp_path.as_uri())
    kept = Milestones(blobs, JOB, every=2)
    for step in (2, 4):
        await kept.keep(milestone(step), 0)
    await kept.idle()
    newest = [ref.key async for ref in blobs.list(f"snapshots/{JOB}.milestones/{4:010d}")]
    (weights,) = [key for key in newest if key.endswith("weights.safetensors")]
    (tmp_path / weights).write_bytes(b"torn")
    assert await kept.at(5) == milestone(2)
    assert await kept.at(1) is None


async def test_a_milestone_that_cannot_be_written_leaves_the_one_before(tmp_path, monkeypatch):
    blobs = BlobStore(tmp_path.as_uri())
    kept = Milestones(blobs, JOB, every=2)
    await kept.keep(milestone(2), 0)
    await kept.idle()

    async def full(key, data):
        raise Exhausted(f"no room for {key}")

    monkeypatch.setattr(blobs, "put", full)
    await kept.keep(milestone(4), 0)
    assert await kept.at(4) == milestone(2)


async def test_a_rollback_that_was_announced_is_made_again_after_a_crash_with_the_same_weights(world):
    """The snapshots of the rollback and after are lost: training is made again from the one before, the rollback included."""
    task, _ = await trained(world, world.session(gated()), 3)
    await order(world, 1, 2)
    await world.until(lambda r: r.rollbacks == 1)
    await world.group(3, version=4)
    before = await world.until(lambda r: r.step == 5)
    await eventually(lambda: _told(world, 5))
    await kill(task)
    for key in [ref.key async for ref in world.blobs.list(f"snapshots/{JOB}")]:
        if key.startswith(f"snapshots/{JOB}/") and int(key.split("/")[2]) > 3:
            await world.blobs.delete(key)
    expected = await world.weights(before)
    task = asyncio.create_task(world.session(gated(), instance="t2").run())
    await world.group(4, version=5)
    after = await world.until(lambda r: r.step == 6)
    assert (after.version, after.rollbacks, after.line_start) == (6, 1, 4)
    await kill(task)
    assert after.dropped_groups == {}
    full = [ref.key async for ref in world.blobs.list(f"policies/{JOB}/{5:010d}")]
    bodies = [await world.blobs.read(key) for key in full if key.endswith(".safetensors")]
    assert bodies
    assert all(body == expected[0] for body in bodies), "version 5 was made twice, and is the same"


async def _told(world, step):
    return any(each.step == step for each in await world.steps())


async def test_a_rollback_into_an_earlier_phase_begins_the_phase_anew(world):
    begun = []

    class Begins(FakeEngine):
        def begin(self, phase):
            begun.append(self._updates)
            super().begin(phase)

    job = gated(phase("a", steps=2, groups=1), phase("b", steps=5, groups=1))
    task = asyncio.create_task(world.session(job, engine=Begins()).run())
    for index in range(4):
        await world.group(index, version=index, phase=int(index > 1))
        await world.until(lambda r, n=index + 1: r.step == n)
    assert len(begun) == 2
    await order(world, 1, 2)
    record = await world.until(lambda r: r.rollbacks == 1)
    assert (record.phase, record.phase_step) == (1, 3)
    assert len(begun) == 3
    await kill(task)


async def test_weights_of_accepted_versions_stay(world):
    await order(world, 0, 2, held=(2,))
    task, _ = await trained(world, world.session(gated(phase(steps=12, groups=1))), 9)
    folders = {ref.key.split("/")[2] async for ref in world.blobs.list(f"policies/{JOB}")}
    assert f"{2:010d}" in folders
    assert f"{3:010d}" not in folders
    await kill(task)


async def test_a_job_that_never_goes_back_keeps_no_milestones(world):
    plain = spec(phase(steps=4, groups=1))
    plain.eval.every = 1
    task, _ = await trained(world, world.session(plain), 3)
    assert [ref.key async for ref in world.blobs.list(f"snapshots/{JOB}.milestones")] == []
    await kill(task)


@given(st.lists(st.integers(0, 40), unique=True), st.integers(0, 40))
def test_what_a_rollback_to_the_accepted_step_needs_is_never_superfluous(steps, accepted):
    gone = superfluous(steps, accepted)
    left = [step for step in steps if step not in gone]
    upto = [step for step in steps if step <= accepted]
    assert not upto or max(upto) in left
    assert len([step for step in left if step <= accepted]) <= ACCEPTED
    assert len([step for step in left if step > accepted]) <= UNJUDGED


@given(st.data())
def test_after_any_mix_of_steps_and_rollbacks_every_group_is_settled_once(data):
    ledger = Ledger([Phase(steps=60, groups_per_step=1, max_staleness=8, ages=True)])
    index = 0
    for _ in range(data.draw(st.integers(1, 40))):
        if data.draw(st.booleans()):
            version = data.draw(st.integers(0, ledger.version))
            ledger.arrive(Arrival(str(index), index, f"g{index}", 0, version))
            index += 1
        if data.draw(st.integers(0, 9)) == 0:
            ledger.roll_back(ledger.rollbacks + 1)
        if taken := ledger.take():
            assert all(each.min_version >= ledger.line_start for each in taken)
            ledger.commit(taken, published=True)
        assert ledger.balanced
        assert index == len(ledger.settled) + len(ledger.pending)
        again = Ledger.from_facts(ledger.phases, ledger.facts())
        assert (again.rollbacks, again.line_start) == (ledger.rollbacks, ledger.line_start)


def test_demonstrations_have_no_line():
    ledger = Ledger([Phase(steps=9, groups_per_step=1, max_staleness=0, ages=False)])
    ledger.roll_back(1)
    ledger.arrive(Arrival("1", 0, "g0", 0, 0))
    assert len(ledger.take()) == 1
    assert ledger.dropped[Drop.ROLLED_BACK] == 0
