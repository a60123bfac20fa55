"""Tiers that open one after the other, for environments whose tasks grow harder with their number.

A tier is a quarter of the domain's tasks. The next one opens when the lower bound of the last one's success reaches `OPENS_AT`; none
closes again, but each keeps half the weight of the one after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from temper.runtime.errors import Rejected
from temper.scheduler.curriculum.chance import fraction
from temper.scheduler.curriculum.uniform import Uniform
from temper.scheduler.evaluation import wilson

TIERS = 4
OPENS_AT = 0.6


class Gate:
    """A curriculum of tiers."""

    def __init__(self, seed: int, tasks: int) -> None:
        if tasks < TIERS:
            raise Rejected(
                f"the gate needs a bound on the tasks to cut into {TIERS} tiers, at least {TIERS}",
                field="train_tasks",
                hint="set train_tasks, or choose another curriculum",
            )
        self._seed = seed
        self._edges = [tasks * tier // TIERS for tier in range(TIERS + 1)]
        sizes = [last - first for first, last in zip(self._edges, self._edges[1:], strict=False)]
        self._within = [Uniform(seed + tier, size) for tier, size in enumerate(sizes)]
        self._counts = [[0, 0] for _ in range(TIERS)]
        self._open = 1
        self._draws = 0

    @property
    def opened(self) -> int:
        """Tiers that are open."""
        return self._open

    def draw(self) -> int:
        """A tier by weight, its next task."""
        self._draws += 1
        weights = [0.5 ** (self._open - 1 - tier) for tier in range(self._open)]
        left, tier = fraction(f"{self._seed}/{self._draws}/tier") * sum(weights), 0
        while tier < self._open - 1 and left >= weights[tier]:
            left -= weights[tier]
            tier += 1
        return self._edges[tier] + self._within[tier].draw()

    def observe(self, task: int, solved: int, valid: int) -> None:
        """Count for the task's tier; the last open one may open the next."""
        tier = next((t for t in range(TIERS) if task < self._edges[t + 1]), TIERS - 1)
        self._counts[tier][0] += solved
        self._counts[tier][1] += valid
        if self._open < TIERS and self._mastered():
            self._open += 1

    def _mastered(self) -> bool:
        """Whether the last open tier's success is above the bar beyond chance."""
        solved, valid = self._counts[self._open - 1]
        return valid > 0 and wilson(solved / valid, valid)[0] >= OPENS_AT

    def state(self) -> dict[str, Any]:
        """All of it, for JSON."""
        within = [each.state() for each in self._within]
        return {"open": self._open, "draws": self._draws, "counts": self._counts, "within": within}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` gave."""
        self._open, self._draws = int(state["open"]), int(state["draws"])
        self._counts = [[int(solved), int(valid)] for solved, valid in state["counts"]]
        for each, saved in zip(self._within, state["within"], strict=True):
            each.resume(saved)
