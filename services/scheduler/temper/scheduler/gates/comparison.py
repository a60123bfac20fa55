"""Statistics of gates. One sided: how surprising a value is if the bound is kept.

A domain is compared with its own past task by task. Two pseudo-tasks, half of one gained and half of one lost, keep the error away from zero
(Agresti and Min, Statistics in Medicine 24 (2005) 729); without pairs, one success and one failure are added on each side (Agresti and Caffo, The American
Statistician 54 (2000) 280). Several domains at one look: Holm (1979). Several looks at one job: the allowed error is spread evenly over them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

ALPHA = 0.05
"""Chance that any gate of a job fails although every bound is kept."""
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Change:
    """How a domain moved. Example: `Change(-0.31, 0.07, 48)`."""

    mean: float
    """Of pass@1."""
    error: float
    """Standard error; above 0."""
    n: int
    """Tasks."""

    def interval(self, alpha: float = ALPHA) -> tuple[float, float]:
        """Two-sided interval."""
        half = _NORMAL.inv_cdf(1 - alpha / 2) * self.error
        return max(-1.0, self.mean - half), min(1.0, self.mean + half)

    def surprise(self, drop: float) -> float:
        """Chance of a change this low or lower if the domain fell by `drop` and no more."""
        return _NORMAL.cdf((self.mean + drop) / self.error)


def paired(changes: Sequence[float]) -> Change:
    """From the change of each task."""
    n = len(changes) + 2
    total, squares = math.fsum(changes), math.fsum(change * change for change in changes) + 1.0
    return Change(total / n, math.sqrt(max(squares - total * total / n, 0.0)) / n, len(changes))


def unpaired(before: tuple[float, int], after: tuple[float, int]) -> Change:
    """From (pass@1, tasks) of two evaluations."""
    (old, old_error), (new, new_error) = _plus_two(*before), _plus_two(*after)
    return Change(new - old, math.hypot(old_error, new_error), min(before[1], after[1]))


def _plus_two(p: float, n: int) -> tuple[float, float]:
    middle = (p * n + 1.0) / (n + 2)
    return middle, math.sqrt(middle * (1.0 - middle) / (n + 2))


def below(p: float, n: int, bound: float) -> float:
    """Chance of a share this low or lower in `n` tasks if the true one is `bound` (score test)."""
    kept = min(max(bound, 1e-3), 1.0 - 1e-3)  # at 0 and 1 the normal approximation has no width
    return _NORMAL.cdf((p - kept) / math.sqrt(kept * (1.0 - kept) / n))


def rejected(surprises: Mapping[str, float], alpha: float) -> set[str]:
    """Names whose bound is broken, at a chance of `alpha` that one is named wrongly (Holm)."""
    out: set[str] = set()
    left = len(surprises)
    for name, surprise in sorted(surprises.items(), key=lambda item: (item[1], item[0])):
        if surprise > alpha / left:
            break
        out.add(name)
        left -= 1
    return out
