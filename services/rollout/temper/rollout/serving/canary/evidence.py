"""What two arms' outcomes say, at any time they are looked at.

Differences are judged by a confidence *sequence*: it holds at every look at once, so looking after each outcome does not
inflate its error. It is the normal-mixture interval of Robbins, as in Johari, Pekelis and Walsh (arXiv 1512.04922, eq. 9):

    |estimate - truth| <= sqrt(2 V (V + t) / t * log(sqrt((V + t) / V) / alpha)),  t = mixture variance
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

_MIXTURE = 0.01  # variance of the mixing normal: sharpest for differences of about 10 points
_MOST_LATENCIES = 10_000  # kept per arm, the newest


class Verdict(StrEnum):
    """What may be done."""

    PASS = "pass"  # noqa: S105 - a verdict, no password
    FAIL = "fail"
    INSUFFICIENT_DATA = "insufficient_data"


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its anytime bounds."""

    low: float
    """Lower bound."""
    estimate: float
    """Middle."""
    high: float
    """Upper bound."""


@dataclass(slots=True)
class Arm:
    """Outcomes of one version. Every count is of trajectories."""

    judged: int = 0
    """With a known success or failure."""
    succeeded: int = 0
    """Of these, successes: deliverables."""
    costs: int = 0
    """With a known cost and a known outcome."""
    cost_sum: float = 0.0
    """Their costs."""
    cost_squares: float = 0.0
    """Squares of them."""
    latencies: list[float] = field(default_factory=list[float])
    """Seconds, the newest last."""

    @property
    def success_rate(self) -> float | None:
        """Share of successes; None before the first outcome."""
        return self.succeeded / self.judged if self.judged else None

    @property
    def cost_per_success(self) -> float | None:
        """Cost of a deliverable; None while there is none, or no cost is known."""
        if not self.costs or not self.succeeded:
            return None
        return self.cost_sum / self.costs / (self.succeeded / self.judged)

    def add(self, success: bool | None, latency_s: float | None, cost: float | None) -> None:
        """Count one trajectory. What is not known is not counted: None is never a failure."""
        if latency_s is not None:
            self.latencies.append(latency_s)
            del self.latencies[:-_MOST_LATENCIES]
        if success is None:
            return
        self.judged += 1
        self.succeeded += success
        if cost is not None:
            self.costs += 1
            self.cost_sum += cost
            self.cost_squares += cost * cost


def interval(estimate: float, variance: float, alpha: float) -> Interval:
    """Anytime interval of an estimate with this variance."""
    total = variance + _MIXTURE
    half = math.sqrt(2 * variance * total / _MIXTURE * math.log(math.sqrt(total / variance) / alpha))
    return Interval(estimate - half, estimate, estimate + half)


def success_difference(baseline: Arm, canary: Arm, alpha: float) -> Interval | None:
    """Canary minus baseline. Rates are shrunk by one success and one failure, so that 10 of 10 is no certainty."""
    if not baseline.judged or not canary.judged:
        return None
    variance = 0.0
    for arm in (baseline, canary):
        rate = (arm.succeeded + 1) / (arm.judged + 2)
        variance += rate * (1 - rate) / arm.judged
    difference = canary.succeeded / canary.judged - baseline.succeeded / baseline.judged
    return interval(difference, variance, alpha)


def cost_ratio(baseline: Arm, canary: Arm, alpha: float) -> Interval | None:
    """Log of canary's cost per success over baseline's (delta method). None while either is undefined."""
    logs, variance = [], 0.0
    for arm in (baseline, canary):
        unit = arm.cost_per_success
        if unit is None or unit <= 0:
            return None
        mean, rate = arm.cost_sum / arm.costs, arm.succeeded / arm.judged
        spread = max(0.0, arm.cost_squares / arm.costs - mean * mean)
        variance += spread / (mean * mean * arm.costs) + (1 - rate) / (rate * arm.judged)
        variance += 1 / (arm.costs * arm.costs)  # never certain: equal costs of few trajectories say little
        logs.append(math.log(unit))
    return interval(logs[1] - logs[0], variance, alpha)


def quantile(values: Sequence[float], share: float, shift: float = 0.0) -> float | None:
    """Order statistic at ``share``, moved by ``shift`` standard deviations of its rank; None for no values."""
    if not values:
        return None
    count = len(values)
    rank = share * count + shift * math.sqrt(count * share * (1 - share))
    return sorted(values)[min(count - 1, max(0, math.ceil(rank) - 1))]
