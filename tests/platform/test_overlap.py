"""Scheduler, rollout and trainer together on simulated time: what bounded staleness buys, and that it is bounded."""

from __future__ import annotations

import dataclasses

import pytest
import structlog
from bench.async_overlap import simulate
from bench.simulation.workload import Workload

TINY = Workload(
    steps=5, groups_per_step=2, samples=2, slots=4, median_tokens=6, longest_tokens=32, token_s=0.5, train_s=4
)


@pytest.fixture(autouse=True)
def _quiet():
    yield
    structlog.reset_defaults()


def test_synchronous_training_and_generation_take_turns():
    ran = simulate(TINY)
    turns = simulate(dataclasses.replace(TINY, max_staleness=0))
    assert turns.wall_s == pytest.approx(turns.work_s + turns.train_s)
    assert turns.staleness == 0
    assert ran.wall_s == pytest.approx(
        ran.train_s + ran.work_s / TINY.steps
    )  # only the first groups are waited for


def test_with_a_long_tail_asynchronous_training_is_faster_and_ages_stay_within_the_bound():
    tailed = dataclasses.replace(TINY, sigma=1.0)
    turns, ran = (simulate(dataclasses.replace(tailed, max_staleness=bound)) for bound in (0, 1))
    assert ran.wall_s < turns.wall_s
    assert turns.dropped == 0
    assert 0 < ran.staleness <= 1


def test_simulated_time_repeats_exactly():
    tailed = dataclasses.replace(TINY, sigma=1.0)
    assert simulate(tailed) == simulate(tailed)
