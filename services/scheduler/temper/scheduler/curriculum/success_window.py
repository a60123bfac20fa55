"""Tasks that the policy solves sometimes."""

from __future__ import annotations

from temper.scheduler.curriculum.beliefs import Chooser

WINDOW = (0.2, 0.8)  # success rates from which a group has something to learn


class SuccessWindow(Chooser):
    """Tasks whose estimated success lies in the window, all alike."""

    def choose(self) -> int | None:
        """A task inside the window."""
        return self._one_of([task for task in self._beliefs if WINDOW[0] <= self.estimate(task) <= WINDOW[1]])
