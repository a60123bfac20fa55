"""Curricula: epochs are permutations, windows find the learnable, resume is exact."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from temper.runtime.errors import Rejected
from temper.scheduler import curriculum
from temper.scheduler.curriculum import SuccessWindow, Uniform, permuted


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
