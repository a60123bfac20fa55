"""Scheduler, rollout and trainer together on simulated time: what bounded staleness buys, and that it is bounded."""

from __future__ import annotations

import dataclasses

import pytest
import structlog
from bench.async_overlap import TAIL, simulate
from bench.simulation import platform
from bench.simulation.workload import Workload

from temper.api.sandbox.v1.sandbox_pb2 import FinishRequest, FinishResponse

TINY = Workload(
    steps=5, groups_per_step=2, samples=2, slots=4, median_tokens=6, longest_tokens=32, token_s=0.5, train_s=4
)
PUBLISHED = Workload(steps=4, sigma=TAIL)  # the benchmark's own devices and lengths


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


def test_a_synchronous_step_waits_for_its_longest_outputs_and_the_optimizer_and_for_nothing_else():
    work = dataclasses.replace(PUBLISHED, max_staleness=0)
    ran = simulate(work)
    waves = work.groups_per_step * work.samples / work.slots
    assert ran.calls > 0  # outputs that call a tool are among them, and cost no more than others
    assert ran.wall_s <= work.steps * (work.train_s + waves * work.longest_tokens * work.token_s)
    assert ran.dropped == 0


def test_with_one_version_of_staleness_the_busier_device_rests_little():
    ran = simulate(PUBLISHED)
    assert ran.calls > 0
    assert (
        ran.trainer_idle <= 0.2
    )  # the first groups, for which it has to wait, are a good part of so few steps
    assert ran.wall_s <= 1.25 * ran.ideal_s


def test_a_simulation_that_loses_samples_says_so_instead_of_publishing_a_time(
    monkeypatch: pytest.MonkeyPatch,
):
    async def half_broken(request: FinishRequest, _: object) -> FinishResponse:
        if len(request.answer) % 2:
            return FinishResponse(infra_error="verifier_error: simulated", host=platform.HOST)
        return FinishResponse(reward=float(len(request.answer) % 4 == 0), host=platform.HOST)

    monkeypatch.setattr(platform, "_finish", half_broken)
    with pytest.raises(RuntimeError, match=r"lost \d+ samples"):
        simulate(dataclasses.replace(PUBLISHED, steps=2))
