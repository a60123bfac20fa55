"""What is known about tasks that were tried, and the rule that most curricula share: some draws explore, the others choose.

Success is a Beta(1, 1) posterior per task; evidence keeps `FORGETTING` of its weight at each later visit of the task. At most `capacity`
tasks are remembered; beyond it the one visited longest ago is forgotten, which bounds the state that is saved with every publication.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from temper.scheduler.curriculum.chance import fraction
from temper.scheduler.curriculum.uniform import Uniform

FORGETTING = 0.98
PROBE = 0.1  # share of draws that look at tasks in their natural order, so that estimates elsewhere do not go stale


class Beliefs:
    """Success rates of the tasks seen last."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._found: dict[int, tuple[float, float]] = {}  # task -> (alpha, beta), oldest visit first

    def __iter__(self) -> Iterator[int]:
        """Tasks, in the order of their numbers."""
        return iter(sorted(self._found))

    def estimate(self, task: int) -> float:
        """Posterior mean of the success rate of `task`; 0.5 if it is not known."""
        alpha, beta = self._found.get(task, (1.0, 1.0))
        return alpha / (alpha + beta)

    def observe(self, task: int, solved: int, valid: int) -> None:
        """Update the task's posterior; a visit without valid samples is no evidence."""
        if valid == 0:
            return
        alpha, beta = self._found.pop(task, (1.0, 1.0))
        alpha = 1.0 + FORGETTING * (alpha - 1.0) + solved
        beta = 1.0 + FORGETTING * (beta - 1.0) + (valid - solved)
        self._found[task] = (alpha, beta)
        while len(self._found) > self._capacity:
            del self._found[next(iter(self._found))]

    def state(self) -> list[list[float]]:
        """All of it, for JSON."""
        return [[task, alpha, beta] for task, (alpha, beta) in self._found.items()]

    def resume(self, state: Sequence[Sequence[float]]) -> None:
        """Continue from what `state` gave."""
        self._found = {int(task): (float(alpha), float(beta)) for task, alpha, beta in state}


class Chooser(ABC):
    """A curriculum that chooses among the tasks it has beliefs about; subclasses say which."""

    def __init__(self, seed: int, tasks: int, capacity: int = 4096) -> None:
        self._seed = seed
        self._fresh = Uniform(seed, tasks)
        self._beliefs = Beliefs(capacity)
        self._draws = 0

    def estimate(self, task: int) -> float:
        """Posterior mean of the success rate of `task`; 0.5 if it was never seen."""
        return self._beliefs.estimate(task)

    @abstractmethod
    def choose(self) -> int | None:
        """A known task, or None to explore."""
        ...

    def draw(self) -> int:
        """The next task: one draw in ten explores, and so does every one for which there is nothing to choose."""
        self._draws += 1
        chosen = None if self._chance("probe") < PROBE else self.choose()
        return self._fresh.draw() if chosen is None else chosen

    def observe(self, task: int, solved: int, valid: int) -> None:
        """Update what is believed about the task."""
        self._beliefs.observe(task, solved, valid)

    def state(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {"fresh": self._fresh.state(), "draws": self._draws, "beliefs": self._beliefs.state()}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` gave."""
        self._fresh.resume(state["fresh"])
        self._draws = int(state["draws"])
        self._beliefs.resume(state["beliefs"])

    def _chance(self, what: str) -> float:
        """Uniform in [0, 1), fixed by seed, draw and purpose."""
        return fraction(f"{self._seed}/{self._draws}/{what}")

    def _one_of(self, tasks: Sequence[int]) -> int | None:
        """Any of them alike; None of none."""
        return tasks[int(self._chance("pick") * len(tasks))] if tasks else None

    def _weighted(self, weights: Sequence[float], what: str) -> int:
        """Index drawn in proportion to weights that are not all 0."""
        left = self._chance(what) * sum(weights)
        for index, weight in enumerate(weights):
            left -= weight
            if left < 0:
                return index
        return max(index for index, weight in enumerate(weights) if weight > 0)
