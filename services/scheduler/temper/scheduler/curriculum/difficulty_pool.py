"""Pools of hard, middling, easy and unseen tasks, each with a weight."""

from __future__ import annotations

from temper.scheduler.curriculum.beliefs import Chooser

UPPER = (0.25, 0.75, 1.0)  # estimated success up to which a task is hard, middling, easy
WEIGHTS = (0.2, 1.0, 0.2)
UNSEEN = 1.0


def pool_of(success: float) -> int:
    """Index of the pool that an estimate belongs to."""
    return next(index for index, upper in enumerate(UPPER) if success <= upper)


class DifficultyPool(Chooser):
    """First a pool by weight (those that are empty have none), then any of its tasks."""

    def choose(self) -> int | None:
        """A task of the pool drawn, or None for the unseen."""
        pools: list[list[int]] = [[] for _ in UPPER]
        for task in self._beliefs:
            pools[pool_of(self.estimate(task))].append(task)
        weights = [weight if pool else 0.0 for weight, pool in zip(WEIGHTS, pools, strict=True)]
        drawn = self._weighted([*weights, UNSEEN], "pool")
        return None if drawn == len(UPPER) else self._one_of(pools[drawn])
