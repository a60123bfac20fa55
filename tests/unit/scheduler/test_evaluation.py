"""Evaluation: vectors of other projects' tests, null rules, and order independence."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from temper.api.common.v1.common_pb2 import SampleClass
from temper.api.rollout.v1.rollout_pb2 import SampleSummary
from temper.scheduler.evaluation import Tally, pass_at_k, pass_hat_k, wilson

SCORED = SampleClass.SAMPLE_CLASS_SCORED
LOST = SampleClass.SAMPLE_CLASS_INFRA_FAILED


def sample(task, solved, kind=SCORED, version=0):
    summary = SampleSummary(
        task_index=task, sample_class=kind, solved=solved, min_version=version, max_version=version
    )
    if kind != LOST:
        summary.reward = float(solved)
    return summary


def test_vectors_of_tinker_cookbook_prime_rl_and_nemo_rl():
    assert pass_at_k(10, 2, 3) == pytest.approx(0.5333, abs=1e-4)
    assert pass_at_k(4, 2, 1) == pytest.approx(0.5)
    assert pass_at_k(4, 2, 2) == pytest.approx(0.8333, abs=1e-4)
    assert pass_hat_k(4, 2, 2) == pytest.approx(0.1667, abs=1e-4)


@given(st.integers(0, 20), st.integers(0, 20), st.integers(1, 30))
def test_pass_at_k_is_null_exactly_when_there_are_too_few_samples(n, c, k):
    c = min(c, n)
    estimate = pass_at_k(n, c, k)
    assert (estimate is None) == (n < k)
    assert estimate is None or 0 <= estimate <= 1
    assert estimate is None or c or estimate == 0


def test_wilson_known_values():
    assert wilson(0.5, 100) == pytest.approx((0.4038, 0.5962), abs=1e-4)
    assert wilson(0.0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson(0.0, 0) == (0.0, 1.0)


@given(st.floats(0, 1), st.integers(1, 500))
def test_wilson_holds_the_estimate(p, n):
    low, high = wilson(p, n)
    assert 0 <= low <= p + 1e-12
    assert p - 1e-12 <= high <= 1


def test_lost_samples_leave_the_count_and_show_as_coverage():
    tally = Tally(groups=1, attempted=4)
    tally.add(0, [sample(0, True), sample(1, False), sample(2, True, LOST), sample(3, True)])
    result = tally.result("before", "calc", 0)
    assert (result.n, result.attempted, result.solved) == (3, 4, 2)
    assert result.pass_at_1 == pytest.approx(2 / 3)
    assert result.mean_reward == pytest.approx(2 / 3)


def test_a_reward_of_nan_is_not_a_reward():
    broken = sample(0, False)
    broken.reward = float("nan")
    tally = Tally(groups=1, attempted=1)
    tally.add(0, [broken])
    assert tally.result("before", "calc", 0).n == 0


def test_agent_failures_count_as_failures():
    tally = Tally(groups=1, attempted=2)
    tally.add(0, [sample(0, False, SampleClass.SAMPLE_CLASS_AGENT_FAILED), sample(1, True)])
    assert tally.result("p", "d", 0).pass_at_1 == 0.5


def test_nothing_valid_gives_an_empty_result_with_an_open_interval():
    result = Tally(groups=1, attempted=8).result("p", "d", 3)
    assert (result.n, result.attempted, result.low, result.high) == (0, 8, 0.0, 1.0)


def test_a_group_counts_once():
    tally = Tally(groups=2, attempted=2)
    assert tally.add(0, [sample(0, True)])
    assert not tally.add(0, [sample(0, True)])
    assert tally.n == 1
    assert not tally.complete
    tally.add(1, [])
    assert tally.complete


def test_pass_at_k_is_averaged_over_tasks_that_have_k_samples():
    tally = Tally(groups=1, attempted=8)
    full = [sample(0, solved) for solved in (True, False, False, False)]
    short = [sample(1, True), sample(1, False, LOST), sample(1, False, LOST), sample(1, False, LOST)]
    tally.add(0, full + short)
    result = tally.result("p", "d", 0)
    assert result.pass_at_1 == pytest.approx((0.25 + 1.0) / 2)
    assert dict(result.pass_at_k) == pytest.approx({2: 0.5, 4: 1.0})


def test_versions_span_the_samples():
    tally = Tally(groups=1, attempted=2)
    tally.add(0, [sample(0, True, version=7), sample(1, True, version=9)])
    result = tally.result("p", "d", 0)
    assert (result.min_version, result.max_version) == (7, 9)


@given(st.permutations(range(5)), st.integers(0, 5))
def test_order_and_interruption_change_nothing(order, cut):
    chunks = {
        index: [sample(10 * index + task, task % (index + 1) == 0) for task in range(6)] for index in range(5)
    }
    straight = Tally(groups=5, attempted=30)
    for index in range(5):
        straight.add(index, chunks[index])
    broken = Tally(groups=5, attempted=30)
    for index in order[:cut]:
        broken.add(index, chunks[index])
    broken = Tally(**json.loads(json.dumps(broken.state())))
    for index in order:
        broken.add(index, chunks[index])
    assert broken.result("p", "d", 1) == straight.result("p", "d", 1)
