"""A reward model in the loop: what its opinion is worth, and when it is worth nothing."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.trainer.world import model, phase, spec

from temper.runtime.errors import Rejected
from temper.trainer.algorithms import algorithm
from temper.trainer.compute import train
from temper.trainer.engine.fake import FakeEngine
from temper.trainer.engine.torch import make as torch_engine
from temper.trainer.judging import opinion, rewarded, trusted
from temper.trainer.plan import model_config, plan
from temper.trainer.samples import Sample


def sample(reward, *, group=0, valid=True, actions=3):
    mask = np.array([False] * 2 + [True] * actions)
    return Sample(
        np.arange(1, mask.size + 1),
        mask,
        np.where(mask, -1.0, 0.0).astype(np.float32),
        reward,
        valid,
        group,
        "calc",
    )


def settings(**params):
    return algorithm("grpo").settings({"rm_weight": 0.5, **params}, {}, max_staleness=1)


def test_pairs_in_opposite_order_are_counted_task_by_task():
    samples = [sample(1.0), sample(0.0), sample(1.0, group=1), sample(0.0, group=1)]
    found = opinion(samples, np.array([2.0, 1.0, -1.0, 1.0], np.float32), 7)
    assert (found.pairs, found.disagreement, found.version) == (2, 0.5, 7)


def test_a_tie_of_the_model_is_half_a_disagreement():
    assert opinion([sample(1.0), sample(0.0)], np.array([1.0, 1.0], np.float32), 1).disagreement == 0.5


def test_what_is_not_valid_or_did_not_act_is_not_compared():
    samples = [sample(1.0), sample(0.0, valid=False), sample(0.0)]
    assert opinion(samples, np.array([1.0, 5.0, np.nan], np.float32), 1).pairs == 0


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(-5, 5)), min_size=2, max_size=8))
def test_a_model_and_its_opposite_disagree_on_everything_between_them(pairs):
    samples = [sample(reward) for reward, _ in pairs]
    said = np.array([value for _, value in pairs], np.float32)
    found, turned = opinion(samples, said, 1), opinion(samples, -said, 1)
    assert found.disagreement + turned.disagreement == pytest.approx(1.0 if found.pairs else 0.0)


def test_above_the_limit_the_model_has_no_say():
    found = opinion([sample(1.0), sample(0.0)], np.array([-1.0, 1.0], np.float32), 1)
    assert trusted(found, settings()) == 0.0
    assert trusted(found, settings(rm_max_disagreement=1.0)) == 0.5


def test_rewards_are_mixed_and_scores_brought_into_zero_and_one():
    found = opinion([sample(1.0), sample(0.0)], np.array([0.0, 1000.0], np.float32), 1)
    assert [each.reward for each in rewarded([sample(1.0), sample(0.0)], found, 0.5)] == [0.75, 0.5]


def test_a_sample_without_a_reward_stays_without_one():
    lost = sample(float("nan"), valid=False)
    found = opinion([lost], np.array([3.0], np.float32), 1)
    assert np.isnan(rewarded([lost], found, 1.0)[0].reward)


def rlhf(**params):
    return plan(
        spec(
            phase("rm", algorithm="reward_model"), phase("rl", algorithm_params={"rm_weight": 1.0, **params})
        )
    )


def test_a_reward_model_must_be_trained_before_it_is_asked():
    with pytest.raises(Rejected, match="no earlier phase") as caught:
        plan(spec(phase(algorithm_params={"rm_weight": 1.0})))
    assert caught.value.field == "phases[0].algorithm_params.rm_weight"


def test_a_refresh_without_a_say_is_refused():
    with pytest.raises(Rejected, match="needs rm_weight above 0"):
        plan(spec(phase(algorithm_params={"rm_refresh": 2})))


@pytest.mark.parametrize("make", [FakeEngine, torch_engine])
def test_in_one_job_a_model_is_trained_asked_and_refreshed(make):
    first, second = rlhf(rm_refresh=2, rm_max_disagreement=1.0)
    engine = make()
    engine.build(model_config(model()), seed=3)
    engine.begin(first.start(None))
    samples = [sample(float(i % 2), group=i // 2, actions=2 + i) for i in range(6)]
    for step in range(3):
        assert not train(engine, first, samples, step).skipped
    engine.begin(second.start(None))
    outcomes = [train(engine, second, samples, step).metrics for step in range(3)]
    assert [m["rm_version"] for m in outcomes] == [3.0, 3.0, 4.0]
    assert [m["rm_weight"] for m in outcomes] == [1.0, 1.0, 1.0]


def test_the_verifier_alone_rewards_where_the_model_is_not_trusted():
    _, second = rlhf(rm_max_disagreement=0.0)
    engine, alone = FakeEngine(), FakeEngine()
    for each in (engine, alone):
        each.build(model_config(model()), seed=3)
    engine._judge_version = 1
    samples = [sample(1.0, actions=2), sample(0.0, actions=5)]  # the twin likes long answers
    plain = replace(second, settings=algorithm("grpo").settings({}, {}, max_staleness=1))
    assert train(engine, second, samples, 0).metrics["rm_weight"] == 0.0
    train(alone, plain, samples, 0)
    assert [t.data for t in engine.export()] == [t.data for t in alone.export()]


def test_a_reward_model_leaves_the_job_at_the_end_of_its_phase():
    first, second = rlhf()
    assert [first.leaves_judge(step) for step in (1, 4)] == [False, True]
    assert not second.leaves_judge(4)
    assert rlhf(rm_refresh=1)[1].leaves_judge(4)


@pytest.mark.parametrize("filtered", [0, 1])
def test_samples_that_were_cut_off_count_for_others_and_not_for_themselves(filtered):
    (only,) = plan(spec(phase(algorithm_params={"overlong_filter": filtered})))
    engine = FakeEngine()
    engine.build(model_config(model()), seed=3)
    samples = [sample(1.0, actions=2), replace(sample(0.0, actions=5), truncated=True)]
    outcome = train(engine, only, samples, 0)
    assert outcome.tokens == (2 if filtered else 7)
    assert outcome.metrics.get("overlong_filtered") == (1.0 if filtered else None)
