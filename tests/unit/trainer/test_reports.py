# pyright: reportAttributeAccessIssue=false, reportArgumentType=false
# (the functions speak of a tensor protocol; the tests hand in torch tensors and look at more of them)
"""What went wrong elsewhere and must not happen in the trainer; each test is named by the report."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.unit.trainer.test_session import finish
from tests.unit.trainer.test_state import group, ledger, run_step
from tests.unit.trainer.test_torch_engine import engine, group_batch, step
from tests.unit.trainer.world import phase, spec

from temper.api.common.v1 import common_pb2 as common
from temper.api.rollout.v1.rollout_pb2 import GroupRecord, GroupTable, SampleSummary, SampleTokens
from temper.runtime.clock import FakeClock
from temper.runtime.errors import Exhausted, Unavailable
from temper.trainer import intake
from temper.trainer.algorithms import registry
from temper.trainer.patience import Patience
from temper.trainer.samples import Batch
from temper.trainer.state import Drop, Ledger, Phase, Verdict


@pytest.mark.parametrize("kind", [Unavailable, Exhausted])
async def test_verl_2325_a_wait_ends_at_its_deadline_and_names_who_did_not_come(kind):
    clock = FakeClock()

    async def away():
        raise kind("nobody answers")

    begun = clock.monotonic()
    waiting = asyncio.create_task(Patience(clock, 30.0)(away, "weights"))
    await clock.advance(31.0)
    assert waiting.done()
    with pytest.raises(kind, match="weights: nothing came of it within 30 s: nobody answers"):
        waiting.result()
    assert clock.monotonic() - begun <= 31.0


def test_nemo_rl_3238_a_straggler_does_not_hold_up_the_step_and_is_not_drawn_again():
    book = ledger()
    for index in (1, 2, 3, 5):  # 0 and 4 are slow
        book.arrive(group(index))
    assert [run_step(book), run_step(book)] == [[1, 2], [3, 5]]
    again = Ledger.from_facts(book.phases, book.facts())
    for index in (1, 2, 3, 5):  # the log is read again from the offset
        assert again.arrive(group(index, version=2)) is Verdict.DUPLICATE
    assert not again.pending
    again.arrive(group(0, version=2))
    again.arrive(group(4, version=2))
    assert run_step(again) == [0, 4]


def test_areal_1290_a_correction_for_the_engine_is_on_by_default():
    corrected = {
        name: entry.choices["correction"].default
        for name, entry in registry().items()
        if "correction" in entry.choices
    }
    # dppo's ratio is against the rollout engine itself, and so is m2po's
    assert corrected.pop("dppo") == "none"
    assert corrected.pop("m2po") == "bypass"
    assert set(corrected.values()) == {"tis_token"}
    near, far = group_batch(), group_batch()
    for sample in far.samples:
        sample.logprobs[sample.mask] -= 12.0  # an engine that disagrees by e^12: weights stop at 2
    norms = [step(engine(), batch).metrics["grad_norm"] for batch in (near, far)]
    assert norms[1] < 10 * norms[0]


async def test_areal_1290_an_engine_that_disagrees_is_named_by_its_build(world):
    await world.group(0, rewards=(0, 1), engine="other/2 bf16")
    made = engine()
    job = spec(phase(steps=1, groups=1), engine="torch")
    await finish(world.session(job, engine=made))
    records = await world.log.read("jobs", key="job7", timeout_s=0.01)
    said = [record.body.decode(errors="replace") for record in records]
    assert any("other/2 bf16" in text and "mismatch" in text for text in said), said


@pytest.mark.parametrize("budget", [1, 64, 100_000])
def test_verl_2996_logprobs_do_not_depend_on_the_micro_batch(budget):
    batch = group_batch()
    whole, cut = engine().logprobs(batch.samples), engine(budget=budget).logprobs(batch.samples)
    for one, other in zip(whole, cut, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_verl_2996_only_raw_logprobs_are_compared_with_the_trainers():
    made = GroupRecord(
        group_id="g", samples=[SampleSummary(sample_class=common.SAMPLE_CLASS_SCORED, reward=1.0)]
    )
    tokens = SampleTokens(
        token_ids=[1, 2], mask=b"\0\1", logprob_raw=[0.0, -2.0], logprob_processed=[0.0, -0.5]
    )
    table = GroupTable(group_id="g", samples=[tokens]).SerializeToString()
    (found,) = intake.samples(made, table, first_group=0, needs_reward=True)
    assert found.logprobs.tolist() == [0.0, -2.0]


def test_verl_2996_on_policy_the_ratio_is_one():
    batch, made = group_batch(), engine()
    for sample, found in zip(batch.samples, made.logprobs(batch.samples), strict=True):
        sample.logprobs[:] = found
    metrics = step(made, batch).metrics
    assert metrics["mismatch_abs"] < 1e-5
    assert metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_slime_2278_nothing_older_than_the_bound_is_ever_trained_on(bound):
    book = Ledger((Phase(steps=9, groups_per_step=1, max_staleness=bound, ages=True),))
    ages = []
    for index in range(40):  # a queue that nobody paces: all of version 0
        book.arrive(group(index))
    while taken := book.take():
        ages.append(book.staleness(taken[0]))
        book.commit(taken, published=True)
    assert ages == list(range(bound + 1))
    assert book.dropped[Drop.STALE] == 40 - len(ages)


async def test_slime_2278_the_histogram_of_ages_is_published(world):
    for index, version in enumerate((0, 0, 0, 1)):
        await world.group(index, version=version)
    await finish(world.session(spec(phase(steps=2))))
    assert [dict(record.staleness) for record in await world.steps()] == [{0: 8}, {1: 4, 0: 4}]


async def test_skyrl_292_files_do_not_grow_with_the_number_of_steps(world):
    session = world.session(
        spec(phase(steps=13))
    )  # the last step never comes: at the end all would be cleared away
    running = asyncio.create_task(session.run())
    for index in range(12):
        await world.group(index, version=max(0, index // 2 - 1))
    await world.until(lambda r: r.step == 6)
    early = kept(world.directory)
    for index in range(12, 24):
        await world.group(index, version=max(0, index // 2 - 1))
    await world.until(lambda r: r.step == 12)
    late = kept(world.directory)
    session.stop()
    await running
    assert (
        late <= early + 6
    )  # what is being written at either moment; a snapshot and a version per step would be 30


def kept(directory):
    return sum(1 for path in directory.rglob("*") if path.is_file() and "groups" not in path.parts)


def test_a_step_that_nobody_can_use_is_counted_and_moves_nothing():
    batch = group_batch()
    nobody = Batch([replace(s, valid=False) for s in batch.samples], np.zeros(len(batch.samples)))
    made = engine()
    before = [p.detach().clone() for p in made.model.parameters()]
    assert step(made, nobody).skipped == "no valid action tokens"
    assert all(torch.equal(a, b) for a, b in zip(before, made.model.parameters(), strict=True))
