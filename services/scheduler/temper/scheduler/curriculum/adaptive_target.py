"""A target difficulty that follows success (after AdaRFT, arXiv 2504.05520): harder when half is solved, easier when less is.

``d <- clip(d + step·tanh(2(R - 0.5)))`` with R the success of the group that came back; the difficulty of a task is ``1 - p``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from temper.scheduler.curriculum.beliefs import Chooser

STEP = 0.05
START = 0.5
NEAREST = 16  # tasks next to the target that are drawn alike: one alone would be drawn again and again


class AdaptiveTarget(Chooser):
    """Known tasks nearest to the target."""

    def __init__(self, seed: int, tasks: int, capacity: int = 4096) -> None:
        super().__init__(seed, tasks, capacity)
        self._target = START

    @property
    def target(self) -> float:
        """Difficulty aimed at, in [0, 1]."""
        return self._target

    def choose(self) -> int | None:
        """One of the tasks nearest to the target."""
        away = sorted((abs(1.0 - self.estimate(task) - self._target), task) for task in self._beliefs)
        return self._one_of([task for _, task in away[:NEAREST]])

    def observe(self, task: int, solved: int, valid: int) -> None:
        """Move the target, then the belief about the task."""
        if valid:
            self._target += STEP * math.tanh(2.0 * (solved / valid - 0.5))
            self._target = min(1.0, max(0.0, self._target))
        super().observe(task, solved, valid)

    def state(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {**super().state(), "target": self._target}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` gave."""
        super().resume(state)
        self._target = float(state["target"])
