"""The first steps after a restart, compared with what is known of them.

A step that is made again must report what it reported before. The first new step must agree with the rollout engine's probabilities
about as well as the step before the restart did: weights, optimizer or reference that came back wrong show there first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

SAME = ("loss", "grad_norm", "mismatch_abs", "reward_mean")
"""Metrics that a step made again gives again."""
APART = 0.01
"""Relative difference that is no rounding. On a CPU there is none at all."""
JUMP, FLOOR = 4.0, 0.02
"""A mismatch this many times the one before, and this much larger, is no noise."""
MISMATCH = "mismatch_abs"


class Resumption:
    """Watches from a restart on until it has seen one new step."""

    def __init__(
        self,
        before: Mapping[str, float] | None = None,
        announced: Mapping[int, Mapping[str, float]] | None = None,
    ) -> None:
        """``before``: metrics of the last step that is known, None when nothing was resumed. ``announced``: those to be made again."""
        self._announced = dict(announced or {})
        self._before = before
        if self._announced:
            self._before = self._announced[max(self._announced)]

    def problem(self, step: int, metrics: Mapping[str, float]) -> str:
        """What is wrong with a step, in words; empty for nothing."""
        if (told := self._announced.pop(step, None)) is not None:
            return _differs(step, told, metrics)
        before, self._before = self._before, None
        if before is None or MISMATCH not in before or MISMATCH not in metrics:
            return ""
        was, now = before[MISMATCH], metrics[MISMATCH]
        if now > JUMP * was + FLOOR:
            return f"{MISMATCH} is {now:.4g} in step {step}, the first after the restart; it was {was:.4g}"
        return ""


def _differs(step: int, told: Mapping[str, float], metrics: Mapping[str, float]) -> str:
    for name in SAME:
        if name in told and name in metrics:
            was, now = told[name], metrics[name]
            if not math.isclose(was, now, rel_tol=APART, abs_tol=1e-6):
                return f"step {step} was made again and its {name} is {now:.6g} instead of {was:.6g}"
    return ""
