"""What makes a fast variant good enough, as numbers with bounds. Pure functions of what both variants gave.

* **drift**: raw logprobs of a fixed corpus under both. ``d = fast - standard``; K3 is ``mean(exp(d) - 1 - d)`` (Schulman's
  low-variance estimator of a KL divergence).
* **non-inferiority**: success of the same tasks with the same seeds, paired. The one-sided 95 % bound of the mean
  difference over tasks must not lie below ``-margin``.
* **speculation**: two-sample chi-square on the joint of three tokens, with and without drafts, where drafts are frequent.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

_ONE_SIDED = 1.645  # 95 % point of the normal
_LEAST_EXPECTED = 5.0  # per cell, for the chi-square approximation to hold


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much worse a fast variant may be."""

    mean_drift: float = 0.02
    """Of mean |d|."""
    p99_drift: float = 0.2
    """Of the 99th percentile of |d|."""
    k3: float = 0.005
    """Of K3."""
    margin: float = 0.02
    """Of the success rate: two points."""
    speculation_p: float = 0.001
    """Least p-value over all prompts together (Bonferroni)."""
    least_tokens: int = 200
    """Corpus tokens below which drift is not judged."""


@dataclass(frozen=True, slots=True)
class Drift:
    """Logprobs of the fast variant against the standard one."""

    tokens: int
    """Compared."""
    mean: float
    """Mean |d|."""
    p99: float
    """99th percentile of |d|."""
    k3: float
    """Mean of exp(d) - 1 - d."""


@dataclass(frozen=True, slots=True)
class Paired:
    """Success of the fast variant minus the standard one's, per task."""

    tasks: int
    """Compared."""
    standard: float
    """Mean success."""
    fast: float
    """Mean success."""
    difference: float
    """Mean of the differences."""
    low: float
    """One-sided 95 % lower bound."""


@dataclass(frozen=True, slots=True)
class Speculation:
    """With drafts against without."""

    proposed: int
    """Draft tokens verified; 0: nothing was tested."""
    prompts: int
    """Tested."""
    p: float
    """Smallest p-value, times the number of prompts."""


def drift(standard: Sequence[float], fast: Sequence[float]) -> Drift:
    """Aligned logprobs. Anything that is not finite makes the drift infinite."""
    differences = [new - old for old, new in zip(standard, fast, strict=True)]
    if not differences or not all(map(math.isfinite, differences)):
        return Drift(len(differences), math.inf, math.inf, math.inf)
    sizes = sorted(map(abs, differences))
    return Drift(
        tokens=len(sizes),
        mean=sum(sizes) / len(sizes),
        p99=sizes[min(len(sizes) - 1, math.ceil(0.99 * len(sizes)) - 1)],
        k3=sum(math.exp(min(d, 50.0)) - 1 - d for d in differences) / len(differences),
    )


def paired(standard: Sequence[Sequence[float]], fast: Sequence[Sequence[float]]) -> Paired:
    """Scores in [0, 1] ``[task][seed]``. Tasks are the units: seeds of one task are averaged first.

    The standard error is never taken below ``1 / tasks`` (as if one task had differed): no difference in ten tasks is
    no proof of none.
    """
    old, new = ([sum(task) / len(task) for task in scores] for scores in (standard, fast))
    differences = [b - a for a, b in zip(old, new, strict=True)]
    count = len(differences)
    if not count:
        return Paired(0, 0.0, 0.0, 0.0, -1.0)
    mean = sum(differences) / count
    spread = sum((d - mean) ** 2 for d in differences) / max(1, count - 1)
    error = max(math.sqrt(spread / count), 1 / count)
    return Paired(count, sum(old) / count, sum(new) / count, mean, mean - _ONE_SIDED * error)


def same_distribution(first: Sequence[tuple[int, ...]], second: Sequence[tuple[int, ...]]) -> float:
    """p-value of the two-sample chi-square test; rare outcomes share a cell. 1 when there is one cell."""
    one, two = Counter(first), Counter(second)
    total = len(first) + len(second)
    smaller = min(len(first), len(second)) / total if total else 0.0
    cells: Counter[tuple[int, ...]] = Counter()
    pooled = {key: one[key] + two[key] for key in one | two}
    place = {key: key if count * smaller >= _LEAST_EXPECTED else () for key, count in pooled.items()}
    for key, count in pooled.items():
        cells[place[key]] += count
    observed = [Counter[tuple[int, ...]](), Counter[tuple[int, ...]]()]
    for counts, sample in zip(observed, (one, two), strict=True):
        for key, count in sample.items():
            counts[place[key]] += count
    if len(cells) < 2:
        return 1.0
    statistic = 0.0
    for counts, size in zip(observed, (len(first), len(second)), strict=True):
        for key, count in cells.items():
            expected = count * size / total
            statistic += (counts[key] - expected) ** 2 / expected
    return chi_square_tail(statistic, len(cells) - 1)


def chi_square_tail(statistic: float, freedom: int) -> float:
    """P(X > statistic), by the cube-root normal approximation (Wilson and Hilferty 1931)."""
    if statistic <= 0:
        return 1.0
    spread = 2 / (9 * freedom)
    z = ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
    return 0.5 * math.erfc(z / math.sqrt(2))


def shortfalls(
    bounds: Bounds, found: Drift, golden: Paired, speculation: Speculation, *, must_speculate: bool = False
) -> list[str]:
    """Why a variant is refused; empty when it is admitted. A comparison with NaN counts against it.

    ``must_speculate``: its settings ask for drafts, so that none proposed means that nothing was tested.
    """
    wrong: list[str] = []
    if found.tokens < bounds.least_tokens:
        wrong.append(f"the corpus has {found.tokens} tokens; {bounds.least_tokens} are needed")
    for name, value, bound in (
        ("mean |drift|", found.mean, bounds.mean_drift),
        ("p99 |drift|", found.p99, bounds.p99_drift),
        ("K3", found.k3, bounds.k3),
    ):
        if not value <= bound:
            wrong.append(f"{name} is {value:.4g}, over {bound:g}")
    if not golden.low >= -bounds.margin:
        wrong.append(
            f"golden set: difference {golden.difference:+.4f} over {golden.tasks} tasks, lower bound {golden.low:+.4f} "
            f"below -{bounds.margin:g}"
        )
    if must_speculate and not speculation.proposed:
        wrong.append("speculation is asked for, but no draft was proposed: there is no evidence about it")
    if speculation.proposed and not speculation.p >= bounds.speculation_p:
        wrong.append(f"speculation changes the distribution: p = {speculation.p:.2g}")
    return wrong
