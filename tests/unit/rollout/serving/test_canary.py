"""The canary as a machine: it never moves without evidence, never forgets who got what, and can be ended at any point."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from temper.rollout.serving.canary.evidence import (
    Arm,
    Verdict,
    cost_ratio,
    interval,
    quantile,
    success_difference,
)
from temper.rollout.serving.canary.state import OPEN, Canary, Phase, Plan
from temper.runtime.errors import Conflict, NotFound, Rejected

QUICK = Plan(steps=(0.2, 0.5), min_samples=20, margin=0.2, alpha=0.05)


def play(
    canary: Canary, source: random.Random, good: float, bad: float, *, most: int, slow: float = 1.0
) -> int:
    """Trajectories with success rates `good` (baseline) and `bad` (canary); returns how many it took to end."""
    for number in range(most):
        name = f"t{number}"
        new = canary.takes(name)
        success = source.random() < (bad if new else good)
        canary.observe(name, success=success, latency_s=source.uniform(0.9, 1.1) * (slow if new else 1.0))
        if canary.phase not in OPEN:
            return number + 1
    return most


def test_an_equal_version_is_promoted_through_every_step() -> None:
    canary = Canary("v1", QUICK)
    play(canary, random.Random(1), 0.8, 0.8, most=20_000)
    assert canary.phase is Phase.PROMOTED
    assert canary.step == 1
    assert canary.share == 1.0


def test_a_bad_version_fails_and_everybody_gets_the_old_one() -> None:
    canary = Canary("v1", QUICK)
    play(canary, random.Random(2), 0.9, 0.1, most=20_000)
    assert canary.phase is Phase.FAILED
    assert canary.share == 0.0
    assert not any(canary.takes(f"new{number}") for number in range(100))
    assert "success difference" in canary.reason


def test_a_slow_version_fails_on_latency_alone() -> None:
    canary = Canary("v1", QUICK)
    play(canary, random.Random(3), 0.9, 0.9, most=20_000, slow=4.0)
    assert canary.phase is Phase.FAILED
    assert "p95" in canary.reason


def test_peeking_after_every_outcome_fails_few_equal_versions() -> None:
    plan = Plan(steps=(0.5,), min_samples=20, margin=0.01, max_p95_ratio=None)
    failed = 0
    for seed in range(40):
        canary = Canary(f"v{seed}", plan)
        play(canary, random.Random(seed), 0.5, 0.5, most=400)
        failed += canary.phase is Phase.FAILED
    assert failed <= 4, "alpha is 5 % over all looks together; 5 or more of 40 has a chance of 1 in 20"


def test_too_few_samples_move_nothing() -> None:
    canary = Canary("v1", Plan(steps=(0.5,), min_samples=1000))
    play(canary, random.Random(4), 1.0, 0.0, most=800)
    assert canary.phase is Phase.RUNNING
    assert canary.judge().verdict is Verdict.INSUFFICIENT_DATA


def test_nothing_is_concluded_from_trajectories_whose_outcome_nobody_knows() -> None:
    canary = Canary("v1", Plan(steps=(0.5,), min_samples=10))
    for number in range(500):
        canary.takes(f"t{number}")
        canary.observe(f"t{number}", success=None, latency_s=1.0)
    assert canary.phase is Phase.RUNNING
    assert canary.baseline.success_rate is None


def test_a_missing_metric_that_the_plan_asks_for_is_insufficient() -> None:
    canary = Canary(
        "v1", Plan(steps=(0.5,), min_samples=10, margin=0.5, max_cost_ratio=1.2, max_p95_ratio=None)
    )
    for number in range(2000):
        canary.takes(f"t{number}")
        canary.observe(f"t{number}", success=True)
    assert canary.phase is Phase.RUNNING
    assert "cost per success is not known" in " ".join(canary.judge().reasons)


def test_a_version_that_costs_twice_as_much_per_success_fails() -> None:
    canary = Canary(
        "v1", Plan(steps=(0.5,), min_samples=50, margin=0.3, max_cost_ratio=1.2, max_p95_ratio=None)
    )
    for number in range(4000):
        cost = 2.0 if canary.takes(f"t{number}") else 1.0
        if canary.phase not in OPEN:
            break
        canary.observe(f"t{number}", success=True, cost=cost)
    assert canary.phase is Phase.FAILED
    assert "cost per success times 2.0" in canary.reason


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
@pytest.mark.parametrize("name", ["latency_s", "cost"])
def test_a_number_that_is_none_is_refused_and_not_counted(name: str, value: float) -> None:
    canary = Canary("v1", QUICK)
    canary.takes("t")
    with pytest.raises(Rejected, match="not a finite number"):
        canary.observe("t", success=True, **{name: value})
    assert canary.baseline.judged + canary.canary.judged == 0


def test_a_trajectory_is_told_once_and_only_if_it_was_routed() -> None:
    canary = Canary("v1", QUICK)
    with pytest.raises(NotFound):
        canary.observe("stranger", success=True)
    canary.takes("t")
    canary.observe("t", success=True)
    with pytest.raises(Conflict):
        canary.observe("t", success=True)


def test_a_human_has_the_last_word_and_may_abort_while_being_waited_for() -> None:
    plan = Plan(steps=(0.5,), min_samples=20, margin=0.3, approve=True)
    for end in ("approve", "abort"):
        canary = Canary("v1", plan)
        with pytest.raises(Conflict):
            canary.approve()
        play(canary, random.Random(5), 0.9, 0.9, most=3000)
        assert canary.phase is Phase.WAITING
        canary.approve() if end == "approve" else canary.abort("no")
        assert canary.phase is (Phase.PROMOTED if end == "approve" else Phase.ABORTED)
        with pytest.raises(Conflict):
            canary.abort("again")


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": ()},
        {"steps": (0.5, 0.2)},
        {"steps": (1.0,)},
        {"steps": (math.nan,)},
        {"min_samples": 0},
        {"alpha": 0.0},
        {"margin": math.nan},
        {"max_p95_ratio": 0.5},
        {"max_cost_ratio": math.nan},
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(Rejected):
        Plan(**wrong)  # type: ignore[arg-type]  # that is the point


def test_empty_arms_have_no_rates() -> None:
    assert Arm().success_rate is None
    assert quantile(Arm().latencies, 0.95) is None
    assert Arm().cost_per_success is None
    assert success_difference(Arm(), Arm(), 0.05) is None
    assert cost_ratio(Arm(), Arm(), 0.05) is None
    assert quantile([], 0.5) is None


@given(st.floats(-1, 1), st.floats(1e-9, 1.0), st.floats(0.001, 0.5))
def test_an_interval_holds_its_estimate_and_shrinks_with_the_variance(
    estimate: float, variance: float, alpha: float
) -> None:
    wide, narrow = interval(estimate, variance, alpha), interval(estimate, variance / 2, alpha)
    assert wide.low <= estimate <= wide.high
    assert narrow.high - narrow.low <= wide.high - wide.low


class CanaryMachine(RuleBasedStateMachine):
    """Any order of events: stickiness, conservation, and one-way ends."""

    def __init__(self) -> None:
        super().__init__()
        self.canary = Canary("v", Plan(steps=(0.3, 0.6), min_samples=3, margin=0.4, approve=True))
        self.assigned: dict[str, bool] = {}
        self.told: set[str] = set()
        self.ended: Phase | None = None
        self.shares = [self.canary.share]

    @rule(number=st.integers(0, 40))
    def route(self, number: int) -> None:
        name = f"t{number}"
        took = self.canary.takes(name)
        if self.canary.phase in OPEN:
            assert self.assigned.setdefault(name, took) is took, "sticky"
        else:
            assert took is (self.canary.phase is Phase.PROMOTED)

    @precondition(lambda self: set(self.assigned) - self.told)
    @rule(source=st.randoms(use_true_random=False), success=st.sampled_from([True, True, False, None]))
    def tell(self, source: random.Random, success: bool | None) -> None:
        name = source.choice(sorted(set(self.assigned) - self.told))
        self.canary.observe(name, success=success, latency_s=1.0)
        self.told.add(name)

    @rule()
    def approve(self) -> None:
        if self.canary.phase is Phase.WAITING:
            self.canary.approve()
        else:
            with pytest.raises(Conflict):
                self.canary.approve()

    @precondition(lambda self: len(self.told) > 15)
    @rule()
    def abort(self) -> None:
        if self.canary.phase in OPEN:
            self.canary.abort("test")
        else:
            with pytest.raises(Conflict):
                self.canary.abort("test")

    @invariant()
    def an_end_is_an_end(self) -> None:
        if self.ended is not None:
            assert self.canary.phase is self.ended
        elif self.canary.phase not in OPEN:
            self.ended = self.canary.phase

    @invariant()
    def shares_only_grow_while_it_is_open(self) -> None:
        if self.canary.phase in OPEN:
            assert self.canary.share >= self.shares[-1]
            self.shares.append(self.canary.share)

    @invariant()
    def no_step_and_no_end_by_evidence_below_the_least_number_of_samples(self) -> None:
        least = min(self.canary.baseline.judged, self.canary.canary.judged)
        if self.canary.step or self.canary.phase in (Phase.WAITING, Phase.PROMOTED, Phase.FAILED):
            assert least >= 3
        assert self.canary.baseline.judged + self.canary.canary.judged <= len(self.told)


TestCanaryMachine = CanaryMachine.TestCase
TestCanaryMachine.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
