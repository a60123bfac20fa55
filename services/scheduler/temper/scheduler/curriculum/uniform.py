"""Every task once per epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from temper.scheduler.curriculum.chance import permuted

UNBOUNDED = 1 << 40  # number of tasks where the job sets none: more than any job draws


class Uniform:
    """Every task once per epoch, in an order that depends on seed and epoch.

    Without a bound on the tasks there is one endless epoch in natural order: the tasks themselves are random.
    """

    def __init__(self, seed: int, tasks: int) -> None:
        self._seed = seed
        self._tasks = tasks or UNBOUNDED
        self._drawn = 0

    @property
    def drawn(self) -> int:
        """Draws so far: the frontier."""
        return self._drawn

    def draw(self) -> int:
        """Next task of the epoch's permutation."""
        epoch, position = divmod(self._drawn, self._tasks)
        self._drawn += 1
        if self._tasks == UNBOUNDED:
            return position
        return permuted(position, self._tasks, f"{self._seed}/{epoch}")

    def observe(self, task: int, solved: int, valid: int) -> None:
        """Success does not change the order."""

    def state(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {"drawn": self._drawn}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` gave."""
        self._drawn = int(state["drawn"])
