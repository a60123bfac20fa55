# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOptionalMemberAccess=false
# (the functions speak of a tensor protocol; the tests hand in torch tensors and look at more of them)
"""Rewards of several components and of several domains, and the proximal policy that is interpolated."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.trainer.test_torch_engine import engine, group_batch, weights
from tests.unit.trainer.world import phase, spec

from temper.api.common.v1 import common_pb2 as common
from temper.api.rollout.v1.rollout_pb2 import GroupRecord, GroupTable, SampleSummary, SampleTokens
from temper.runtime.errors import Rejected
from temper.trainer import intake
from temper.trainer.advantage import ESTIMATORS, Component, Scores
from temper.trainer.advantage.scaling import LEAST, RewardScale
from temper.trainer.advantage.shaping import soft_overlong
from temper.trainer.algorithms import algorithm
from temper.trainer.compute import train
from temper.trainer.engine.base import OptimizerSettings
from temper.trainer.engine.fake import FakeEngine
from temper.trainer.judging import JUDGE, Opinion, rewarded
from temper.trainer.plan import plan
from temper.trainer.samples import Batch

STILL = OptimizerSettings(lr=0.0, max_grad_norm=1e9)


def scores(rewards, group, components=(), valid=None):
    count = len(rewards)
    return Scores(
        np.array(rewards, dtype=float),
        np.array([True] * count if valid is None else valid),
        np.array(group),
        np.full(count, 4),
        components,
    )


def parts(**values):
    return {name: Component(value, weight) for name, (value, weight) in values.items()}


# ---------------------------------------------------------------- components


def test_gdpo_normalises_each_component_by_itself():
    # derived: correct 1,0 -> ±.7071·1; format 0,10 -> ∓.7071·.5; sum ±.3536, whitened over the batch -> ±.7071
    both = [parts(correct=(1, 1.0), format=(0, 0.5)), parts(correct=(0, 1.0), format=(10, 0.5))]
    found = ESTIMATORS["gdpo"](scores([1.0, 5.0], [0, 0], both))
    np.testing.assert_allclose(found, [0.7071, -0.7071], atol=1e-3)
    summed = ESTIMATORS["grpo"](scores([1.0, 5.0], [0, 0], both))
    np.testing.assert_allclose(
        summed, [-0.7071, 0.7071], atol=1e-3
    )  # taken as a sum, form drowns what is right


def test_gdpo_without_components_is_grpo_whitened():
    rewards, group = [1, 0, 0, 0, 1, 1], [0, 0, 0, 0, 1, 1]
    plain = ESTIMATORS["grpo"](scores(rewards, group))
    found = ESTIMATORS["gdpo"](scores(rewards, group))
    np.testing.assert_allclose(found, (plain - plain.mean()) / (plain.std(ddof=1) + 1e-6))


def test_a_member_that_never_answered_has_its_reward_in_every_component():
    members = [parts(a=(1, 0.5), b=(1, 0.5)), {}, parts(a=(0, 0.5), b=(0, 0.5))]
    found = ESTIMATORS["gdpo"](scores([1.0, 0.0, 0.0], [0, 0, 0], members))
    assert found[1] == pytest.approx(found[2])


def test_an_overlong_answer_is_a_component_of_its_own():
    shaped = soft_overlong(scores([1.0, 1.0], [0, 0], [parts(a=(1, 1.0)), {}]), 4, 2)
    assert shaped.components[0]["overlong"] == Component(-1.0, 1.0)
    assert shaped.components[1] == {}


def test_the_reward_models_opinion_is_a_component_of_its_own():
    sample = replace(group_batch().samples[0], reward=1.0, components=parts(a=(1, 1.0)))
    (found,) = rewarded([sample], Opinion(np.zeros(1, np.float32), 1, 0.0, 0), 0.25)
    assert found.components == {"a": Component(1, 0.75), JUDGE: Component(0.5, 0.25)}
    assert found.reward == pytest.approx(0.75 + 0.25 * 0.5)


def record(rewards, *, low=0.0, high=1.0, components=()):
    made = GroupRecord(group_id="g", domain="d", reward_min=low, reward_max=high)
    table = GroupTable(group_id="g")
    for number, reward in enumerate(rewards):
        made.samples.append(
            SampleSummary(sample_index=number, sample_class=common.SAMPLE_CLASS_SCORED, reward=reward)
        )
        for name, value in dict(components).items():
            made.samples[-1].components[name].value = value
            made.samples[-1].components[name].weight = 0.5
        spans = [common.VersionSpan(start=0, end=2, version=3), common.VersionSpan(start=2, end=4, version=4)]
        table.samples.append(
            SampleTokens(token_ids=[1, 2, 3, 4], mask=b"\0\0\1\1", logprob_raw=[-1.0] * 4, versions=spans)
        )
    return made, table.SerializeToString()


def read(made, *, needs_reward=True):
    return intake.samples(*made, first_group=0, needs_reward=needs_reward)


def test_components_and_versions_reach_the_sample():
    (found,) = read(record([0.5], components={"a": 1.0, "b": 0.0}))
    assert found.valid
    assert found.components == {"a": Component(1.0, 0.5), "b": Component(0.0, 0.5)}
    assert found.versions.tolist() == [3, 3, 4, 4]


@pytest.mark.parametrize(
    ("reward", "reason"),
    [(1.5, "REWARD_OUT_OF_RANGE"), (-0.1, "REWARD_OUT_OF_RANGE"), (math.nan, "NO_REWARD")],
)
def test_a_reward_outside_the_declared_range_is_masked_with_its_reason(reward, reason):
    found = read(record([reward, 1.0]))
    assert [(s.valid, s.reason) for s in found] == [(False, reason), (True, "")]


def test_without_a_declared_range_any_finite_reward_counts():
    assert read(record([7.0], low=0.0, high=0.0))[0].valid


def test_a_component_that_is_not_finite_is_no_reward():
    assert read(record([1.0], components={"a": math.inf}))[0].reason == "NO_REWARD"


# ---------------------------------------------------------------- domains


def test_a_running_deviation_brings_domains_to_one_scale():
    scale = RewardScale()
    mixed = scores([0, 1, 0, 100], [0, 0, 1, 1])
    domains = ["small", "small", "large", "large"]
    scale.learn(mixed, domains)
    np.testing.assert_allclose(scale.scaled(mixed, domains).rewards, [0, 2, 0, 2])


def test_the_memory_is_a_hundredth_new_each_step():  # q: .99·0 + .01·4 = .04, m: .02, std = sqrt(.04 - .0004)
    scale = RewardScale()
    scale.learn(scores([0, 0], [0, 0]), ["a", "a"])
    scale.learn(scores([2, 2], [0, 0]), ["a", "a"])
    assert scale.deviation("a") == pytest.approx(math.sqrt(0.04 - 0.0004))


def test_a_domain_that_hardly_varies_is_not_blown_up_and_an_unknown_one_stays():
    scale = RewardScale()
    scale.learn(scores([1, 1], [0, 0]), ["a", "a"])
    assert (scale.deviation("a"), scale.deviation("b")) == (LEAST, 1.0)


def test_what_is_not_valid_does_not_move_the_deviation():
    scale = RewardScale()
    scale.learn(scores([0, 1, math.nan], [0, 0, 0], valid=[True, True, False]), ["a"] * 3)
    assert scale.deviation("a") == pytest.approx(0.5)


@given(st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=4), min_size=1, max_size=6))
def test_a_restored_deviation_goes_on_bit_for_bit(steps):
    whole, first = RewardScale(), RewardScale()
    cut = len(steps) // 2
    for rewards in steps[:cut]:
        for each in (whole, first):
            each.learn(scores(rewards, [0] * len(rewards)), ["a"] * len(rewards))
    second = RewardScale.from_facts(json.loads(json.dumps(first.facts())))
    for rewards in steps[cut:]:
        for each in (whole, second):
            each.learn(scores(rewards, [0] * len(rewards)), ["a"] * len(rewards))
    assert whole.facts() == second.facts()


def planned(**choices):
    made = phase(algorithm="dr_grpo")
    made.algorithm_choices.update(choices)
    return plan(spec(made))[0]


class Seen(FakeEngine):
    """Keeps the batch that it was handed."""

    def step(self, batch, algorithm, settings, optimizer):
        self.batch = batch
        return super().step(batch, algorithm, settings, optimizer)


def seen(scale, **choices):
    made = Seen()
    made.build({"vocab_size": 40}, seed=0)
    samples = [replace(s, reward=float(10 * (i % 2))) for i, s in enumerate(group_batch().samples)]
    train(made, planned(**choices), samples, 0, scale=scale)
    return made.batch.advantages


def test_the_step_divides_by_the_running_deviation_where_the_phase_says_so():
    np.testing.assert_allclose(seen(RewardScale(), reward_scale="running_std"), seen(None) / 5.0)


@pytest.mark.parametrize("estimator", ["grpo", "gdpo", "maxrl"])
def test_a_scale_that_would_change_nothing_is_refused(estimator):
    choices = {"advantage": estimator, "reward_scale": "running_std"}
    with pytest.raises(Rejected, match="would change nothing"):
        algorithm("dr_grpo").settings({}, choices, max_staleness=1)


# ---------------------------------------------------------------- proximal policy


def aged(batch, version, *ages):
    """The batch as if its samples had been drawn ``ages`` versions before ``version``."""
    samples = [
        replace(s, versions=np.full(s.ids.size, version - ages[i % len(ages)]))
        for i, s in enumerate(batch.samples)
    ]
    return Batch(samples, batch.advantages, version=version)


def proximal(made, batch, how, optimizer=STILL, **params):
    chosen = algorithm("decoupled_ppo")
    given = {"mini_batches": 2.0} | params
    settings = chosen.settings(given, {"proximal": how}, max_staleness=4)
    return made.step(batch, chosen, settings, optimizer)


def test_with_weights_that_stand_still_the_interpolated_policy_moves_only_as_far_as_its_share():
    # v_prox - v_mu = 2; first update: alpha = 1, so rho = pi/mu; second (v_pi = v_prox + 1/2): alpha = 2/2.5 = .8
    batch = aged(group_batch(), 7, 2)
    made = engine()
    log_pi = np.concatenate(
        [p[s.mask] for p, s in zip(made.logprobs(batch.samples), batch.samples, strict=True)]
    )
    log_mu = np.concatenate([s.logprobs[s.mask] for s in batch.samples])
    found = proximal(made, batch, "log_linear", correction_cap=100.0).metrics["mismatch_k1"]
    first = np.concatenate([np.full(s.actions, s.group in (0, 2)) for s in batch.samples])
    share = np.where(first, 1.0, 0.8)
    assert found == pytest.approx(float((share * (log_mu - log_pi)).mean()), abs=1e-4)


def test_samples_of_the_policy_itself_are_their_own_proximal_policy():  # alpha := 0 where v_pi = v_mu
    outcome = proximal(engine(), aged(group_batch(groups=1), 3, 0), "log_linear", epochs=2.0)
    assert outcome.metrics["mismatch_abs"] == pytest.approx(0.0, abs=1e-6)


def test_interpolation_is_near_what_is_measured_and_not_the_same():
    made, other = engine(), engine()
    batch = aged(group_batch(), 5, 1, 2)
    adam = OptimizerSettings(lr=1e-3)
    found = proximal(made, batch, "log_linear", adam, epochs=2.0).metrics
    exact = proximal(other, batch, "recomputed", adam, epochs=2.0).metrics
    assert found["ratio_mean"] == pytest.approx(exact["ratio_mean"], abs=0.3)
    assert weights(made) != weights(other)


def test_interpolation_saves_the_pass_that_measures(monkeypatch):
    passes = []
    made = engine()
    original = made.policy.gather
    monkeypatch.setattr(made.policy, "gather", lambda *a: passes.append(1) or original(*a))
    proximal(made, aged(group_batch(), 5, 1), "log_linear")
    assert not passes
    proximal(made, aged(group_batch(), 5, 1), "recomputed")
    assert passes


def test_interpolation_without_a_second_update_is_refused():
    with pytest.raises(Rejected, match="nothing to approximate"):
        algorithm("decoupled_ppo").settings({}, {"proximal": "log_linear"}, max_staleness=1)


# ---------------------------------------------------------------- warnings


@pytest.mark.parametrize(("bound", "warns"), [(4e-4, False), (0.01, False), (0.011, True), (0.2, True)])
def test_bounds_of_token_level_ppo_in_gspo_are_warned_of(bound, warns):
    made = phase(algorithm="gspo")
    made.algorithm_params.update({"clip_high_delta": bound, "mini_batches": 2.0})
    found = plan(spec(made))[0].warning
    assert bool(found) == warns
    assert not warns or "clip_high_delta" in found


async def test_a_warning_reaches_who_watches_the_job(world):
    made = phase(algorithm="gspo", steps=1, groups=1)
    made.algorithm_params["clip_low_delta"] = 0.2
    await world.group(0)
    await world.session(spec(made)).run()
    assert world.registry.get_sample_value("temper_trainer_alarms_total", {"kind": "unusual_setting"}) == 1
