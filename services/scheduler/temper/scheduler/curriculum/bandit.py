"""A bandit over bins of difficulty, rewarded by how much groups from there teach (after SEC, arXiv 2505.14970).

The signal of a group is its mean absolute advantage. For binary rewards with success rate p that is ``2·sqrt(p(1-p))`` in units of the
group's own deviation, which is what a group of this size could have taught; a group that all or none solved gives 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from temper.scheduler.curriculum.beliefs import Chooser
from temper.scheduler.curriculum.difficulty_pool import UPPER, pool_of

RATE = 0.3
TEMPERATURE = 0.5
UNSEEN = len(UPPER)  # arm of tasks that were never tried


class Bandit(Chooser):
    """Boltzmann over the arms that have tasks; Q follows the signal."""

    def __init__(self, seed: int, tasks: int, capacity: int = 4096) -> None:
        super().__init__(seed, tasks, capacity)
        self._value = [0.0] * (UNSEEN + 1)

    @property
    def values(self) -> tuple[float, ...]:
        """Q of hard, middling, easy, unseen."""
        return tuple(self._value)

    def choose(self) -> int | None:
        """A task of the arm drawn, or None for the unseen."""
        arms: list[list[int]] = [[] for _ in UPPER]
        for task in self._beliefs:
            arms[pool_of(self.estimate(task))].append(task)
        pull = [math.exp(value / TEMPERATURE) for value in self._value]
        weights = [pull[arm] if arms[arm] else 0.0 for arm in range(UNSEEN)]
        drawn = self._weighted([*weights, pull[UNSEEN]], "arm")
        return None if drawn == UNSEEN else self._one_of(arms[drawn])

    def observe(self, task: int, solved: int, valid: int) -> None:
        """The arm that the task belonged to when it was drawn learns, then the belief about the task."""
        if valid:
            arm = pool_of(self.estimate(task)) if task in set(self._beliefs) else UNSEEN
            share = solved / valid
            signal = 2.0 * math.sqrt(share * (1.0 - share))
            self._value[arm] += RATE * (signal - self._value[arm])
        super().observe(task, solved, valid)

    def state(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {**super().state(), "values": self._value}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` gave."""
        super().resume(state)
        self._value = [float(value) for value in state["values"]]
