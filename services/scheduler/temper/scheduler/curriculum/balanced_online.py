"""Tasks in proportion to ``p(1-p)``: what a group can gain is bounded below by that variance (arXiv 2504.03380)."""

from __future__ import annotations

from temper.scheduler.curriculum.beliefs import Chooser

FLOOR = 0.02  # a task that looks hopeless or done may still have changed


class BalancedOnline(Chooser):
    """Known tasks by the variance of their success."""

    def choose(self) -> int | None:
        """A task by weight."""
        tasks = list(self._beliefs)
        if not tasks:
            return None
        found = [self.estimate(task) for task in tasks]
        return tasks[self._weighted([max(FLOOR, p * (1.0 - p)) for p in found], "pick")]
