"""Numbers that are not numbers, groups that say nothing, policies that do not fit: through the whole trainer."""

import math
from typing import Any

import numpy as np
import pytest
from tests.unit.trainer.test_session import finish
from tests.unit.trainer.test_torch_engine import engine, group_batch, step, weights
from tests.unit.trainer.world import phase, spec

from temper.api.rollout.v1.rollout_pb2 import GroupTable
from temper.trainer.algorithms import registry
from temper.trainer.engine.torch import make
from temper.trainer.samples import Batch


def alarms(world, kind):
    return world.registry.get_sample_value("temper_trainer_alarms_total", {"kind": kind}) or 0.0


class Spoiling:
    """A world whose groups are changed before they are stored."""

    def __init__(self, world, spoil, members):
        self._world, self._spoil, self._members = world, spoil, members
        self._put, self._append = world.blobs.put, world.append

    async def __aenter__(self):
        async def put(key, data, *args, **more):
            table = GroupTable.FromString(data)
            for member in self._members:
                self._spoil(None, table.samples[member])
            return await self._put(key, table.SerializeToString(), *args, **more)

        async def append(record):
            for member in self._members:
                self._spoil(record.samples[member], None)
            await self._append(record)

        self._world.blobs.put, self._world.append = put, append
        return self._world

    async def __aexit__(self, *_):
        self._world.blobs.put, self._world.append = self._put, self._append


def reward(value):
    def spoil(summary, _):
        if summary is not None:
            summary.reward = value

    return spoil


def no_reward(summary, _):
    if summary is not None:
        summary.ClearField("reward")


def logprob(value):
    def spoil(_, tokens):
        if tokens is not None:
            tokens.logprob_raw[8] = value

    return spoil


def foreign_token(_, tokens):
    if tokens is not None:
        tokens.token_ids[7] = 40  # the policy has 0 .. 39


BROKEN = {
    "nan reward": (reward(math.nan), "NO_REWARD"),
    "inf reward": (reward(math.inf), "NO_REWARD"),
    "no reward": (no_reward, "NO_REWARD"),
    "nan logprob": (logprob(math.nan), "INVALID_TOKENS/logprobs"),
    "inf logprob": (logprob(-math.inf), "INVALID_TOKENS/logprobs"),
    "token of another vocabulary": (foreign_token, "INVALID_TOKENS/vocabulary"),
}


@pytest.mark.parametrize("case", sorted(BROKEN))
async def test_a_broken_sample_is_masked_counted_and_told_and_the_others_are_trained_on(world, case):
    spoil, reason = BROKEN[case]
    async with Spoiling(world, spoil, [1]):
        await world.group(0)
    await finish(world.session(spec(phase(steps=1, groups=1), engine="torch"), engine=make()))
    (done,) = await world.steps()
    assert (done.samples, dict(done.masked), done.skipped) == (3, {reason: 1}, False)
    assert done.metrics["grad_norm"] > 0
    assert all(math.isfinite(value) for value in done.metrics.values())
    assert alarms(world, "broken_samples") == 1
    record = await world.record()
    assert (record.consumed_groups, sum(record.dropped_groups.values())) == (1, 0)


@pytest.mark.parametrize("case", sorted(BROKEN))
async def test_a_step_of_nothing_but_broken_samples_leaves_the_weights_alone(world, case):
    spoil, reason = BROKEN[case]
    async with Spoiling(world, spoil, range(4)):
        await world.group(0)
    made = make()
    session = world.session(spec(phase(steps=1, groups=1), engine="torch"), engine=made)
    await finish(session)
    (done,) = await world.steps()
    assert (done.skipped, done.skip_reason) == (True, "no valid action tokens")
    assert dict(done.masked) == {reason: 4}
    assert alarms(world, "step_skipped") == 1
    untouched = make()
    untouched.build(session._origin.config, seed=3)
    assert weights(made) == weights(untouched)


async def test_a_group_without_a_difference_is_consumed_and_teaches_nothing(world):
    await world.group(0, rewards=(1, 1, 1, 1))
    await finish(world.session(spec(phase(steps=1, groups=1), engine="torch"), engine=make()))
    (done,) = await world.steps()
    assert (done.skipped, done.metrics["grad_norm"], done.metrics["flat_groups"]) == (False, 0.0, 1.0)
    assert (await world.record()).consumed_groups == 1


class Exploding:
    """An engine whose gradients are not finite in one step."""

    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def step(self, batch, algorithm, settings, optimizer):
        bad = Batch(
            batch.samples, np.full(len(batch.samples), math.inf), batch.shares, batch.number, batch.version
        )
        return self._inner.step(bad, algorithm, settings, optimizer)


async def test_a_gradient_that_is_not_finite_skips_the_step_with_an_alarm_and_the_ledger_balances(world):
    for index in range(2):
        await world.group(index)
    await finish(world.session(spec(phase(steps=2, groups=1), engine="torch"), engine=Exploding(make())))
    done = await world.steps()
    assert [record.skipped for record in done] == [True, True]
    assert all("non-finite" in record.skip_reason for record in done)
    assert alarms(world, "step_skipped") == 2
    record = await world.record()
    assert record.consumed_groups == 2
    assert record.step == 2


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("name", sorted(set(registry()) - {"sft"}))
def test_numbers_that_are_not_finite_never_reach_the_weights(name, value):
    """An engine is the last line: whatever came through, the weights stay as they are."""
    chosen = registry()[name]
    if chosen.needs(chosen.settings(_must(name), {}, max_staleness=1)).targets:
        return  # these make their own advantages from rewards, which the intake has judged
    made, batch = engine(), group_batch()
    before = weights(made)
    outcome = step(made, Batch(batch.samples, np.full(len(batch.samples), value)), name, **_must(name))
    assert "non-finite" in outcome.skipped
    assert weights(made) == before


def _must(name) -> dict[str, Any]:
    found = {"allow_unclipped": 1.0, "second_moment": 0.04}
    return {key: value for key, value in found.items() if key in registry()[name].params}
