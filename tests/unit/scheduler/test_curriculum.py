"""Curricula: epochs are permutations, windows find the learnable, resume is exact."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from temper.runtime.errors import Rejected
from temper.scheduler import curriculum
from temper.scheduler.curriculum import permuted
from temper.scheduler.curriculum.adaptive_target import AdaptiveTarget
from temper.scheduler.curriculum.balanced_online import BalancedOnline
from temper.scheduler.curriculum.bandit import Bandit
from temper.scheduler.curriculum.difficulty_pool import DifficultyPool
from temper.scheduler.curriculum.gate import Gate
from temper.scheduler.curriculum.success_window import SuccessWindow
from temper.scheduler.curriculum.uniform import Uniform


@given(st.integers(1, 400), st.integers(0, 2**40))
@settings(max_examples=60, deadline=None)
def test_an_epoch_visits_every_task_once(tasks, seed):
    uniform = Uniform(seed, tasks)
    assert sorted(uniform.draw() for _ in range(tasks)) == list(range(tasks))


def test_epochs_differ_and_seeds_differ():
    one, two = Uniform(1, 64), Uniform(2, 64)
    first = [one.draw() for _ in range(64)]
    second = [one.draw() for _ in range(64)]
    other = [two.draw() for _ in range(64)]
    assert first != second
    assert first != other


def test_without_a_bound_no_task_repeats():
    uniform = Uniform(1, 0)
    assert [uniform.draw() for _ in range(1000)] == list(range(1000))


@given(st.integers(1, 5000))
@settings(max_examples=30, deadline=None)
def test_permutation_stays_in_range(size):
    assert all(0 <= permuted(position, size, "k") < size for position in range(0, size, max(1, size // 20)))


def drive(sampler, count, rate):
    for _ in range(count):
        task = sampler.draw()
        sampler.observe(task, round(8 * rate(task)), 8)


def test_window_concentrates_on_tasks_solved_sometimes():
    sampler = SuccessWindow(seed=0, tasks=100)
    rate = lambda task: (0.0, 0.5, 1.0)[task % 3]  # noqa: E731  # one line, used once
    drive(sampler, 600, rate)
    later = [sampler.draw() for _ in range(300)]
    inside = sum(task % 3 == 1 for task in later)
    assert inside > 270 - 30
    assert inside < 300, "a tenth looks elsewhere"


def test_posterior_starts_uniform_and_forgets():
    sampler = SuccessWindow(seed=0, tasks=10)
    assert sampler.estimate(3) == 0.5
    sampler.observe(3, 8, 8)
    assert sampler.estimate(3) == pytest.approx(9 / 10)
    sampler.observe(3, 0, 8)
    assert sampler.estimate(3) == pytest.approx((1 + 0.98 * 8) / (1 + 0.98 * 8 + 1 + 8))


def test_lost_samples_are_no_evidence():
    sampler = SuccessWindow(seed=0, tasks=10)
    sampler.observe(3, 0, 0)
    assert sampler.estimate(3) == 0.5


def test_memory_is_bounded_by_forgetting_the_oldest_visit():
    sampler = SuccessWindow(seed=0, tasks=0, capacity=4)
    for task in (1, 2, 3, 4, 1, 5):
        sampler.observe(task, 8, 8)
    assert [belief[0] for belief in sampler.state()["beliefs"]] == [3, 4, 1, 5]


@pytest.mark.parametrize("name", curriculum.CURRICULA)
@given(cut=st.integers(0, 80), seed=st.integers(0, 99), tasks=st.sampled_from([0, 7, 50]))
@settings(max_examples=30, deadline=None)
def test_resume_through_json_continues_bit_for_bit(name, cut, seed, tasks):
    tasks = tasks or (8 if name == "gate" else 0)
    rate = lambda task: task % 9 / 8  # noqa: E731  # one line, used once
    whole = curriculum.make(name, seed, tasks, 32)
    drive(whole, cut, rate)
    resumed = curriculum.make(name, seed, tasks, 32)
    resumed.resume(json.loads(json.dumps(whole.state())))
    drive(whole, 40, rate)
    drive(resumed, 40, rate)
    assert resumed.state() == whole.state()


def test_an_unknown_curriculum_is_refused_by_name():
    with pytest.raises(Rejected, match="success_windw"):
        curriculum.make("success_windw", 0, 0, 16)


THIRDS = (0.0, 0.5, 1.0)


def shares(sampler, draws=600):
    """Share of draws for tasks that are never, sometimes and always solved, after a time to learn which is which."""
    drive(sampler, 900, lambda task: THIRDS[task % 3])
    found = [sampler.draw() % 3 for _ in range(draws)]
    return [found.count(kind) / draws for kind in range(3)]


def test_pools_are_drawn_by_weight():  # hard .2, middling 1, easy .2, unseen 1 (which are all three alike)
    never, sometimes, always = shares(DifficultyPool(seed=1, tasks=99))
    assert 0.4 < sometimes < 0.75
    assert never == pytest.approx(always, abs=0.1)


def test_balanced_draws_follow_the_variance_and_leave_nothing_out():
    never, sometimes, always = shares(BalancedOnline(seed=1, tasks=99))
    assert sometimes > 0.6
    assert never > 0
    assert always > 0


def test_a_bandit_pulls_the_arm_that_teaches():
    sampler = Bandit(seed=1, tasks=99)
    _, sometimes, _ = shares(sampler)
    hard, middling, easy, unseen = sampler.values
    assert middling > 0.9
    assert max(hard, easy) < 0.2
    assert unseen > 0.0
    assert sometimes > 0.6


def test_a_bandits_value_moves_by_its_rate():  # alpha .3, signal 2·sqrt(.25) = 1
    sampler = Bandit(seed=0, tasks=10)
    sampler.observe(3, 4, 8)
    assert sampler.values == (0.0, 0.0, 0.0, pytest.approx(0.3))
    sampler.observe(3, 4, 8)
    assert sampler.values[1] == pytest.approx(0.3)


def test_a_target_rises_with_success_and_falls_without():  # step .05·tanh(1) = .0381
    sampler = AdaptiveTarget(seed=0, tasks=10)
    sampler.observe(1, 8, 8)
    assert sampler.target == pytest.approx(0.5 + 0.05 * 0.76159, abs=1e-5)
    sampler.observe(1, 0, 8)
    assert sampler.target == pytest.approx(0.5)
    for _ in range(100):
        sampler.observe(1, 8, 8)
    assert sampler.target == 1.0


def test_tasks_nearest_to_the_target_are_drawn():
    sampler = AdaptiveTarget(seed=0, tasks=300)
    for task in range(300):
        sampler._beliefs.observe(task, round(16 * task / 299), 16)  # task 299 is the easiest
    middle = [sampler.draw() for _ in range(200)]
    assert sum(130 < task < 170 for task in middle) > 150


def test_tiers_open_one_after_the_other_and_never_close():
    gate = Gate(seed=0, tasks=40)
    assert all(gate.draw() < 10 for _ in range(50))
    while gate.opened == 1:
        gate.observe(gate.draw(), 8, 8)
    drawn = [gate.draw() for _ in range(600)]
    assert max(drawn) < 20
    assert 0.55 < sum(task >= 10 for task in drawn) / 600 < 0.78, "the newest tier has twice the weight"
    for _ in range(50):
        gate.observe(12, 0, 8)
    assert gate.opened == 2


def test_a_gate_without_a_bound_on_its_tasks_is_refused():
    with pytest.raises(Rejected, match="train_tasks"):
        Gate(seed=0, tasks=0)
