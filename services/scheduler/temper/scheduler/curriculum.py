"""Which task of a domain comes next: one class per rule, all seeded, all resumable.

| name             | rule                                                                                       |
| ---------------- | ------------------------------------------------------------------------------------------ |
| `uniform`        | each epoch is another permutation of the tasks                                             |
| `success_window` | tasks whose estimated success lies in [0.2, 0.8]; a tenth of the draws look elsewhere       |

Randomness is a hash of (seed, draw number), never a generator object: the state of a curriculum is a few numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Protocol

from temper.runtime.errors import Rejected

FORGETTING = 0.98  # weight that evidence keeps per later visit of the same task
WINDOW = (0.2, 0.8)  # success rates from which a group has something to learn
PROBE = 0.1  # share of draws outside the window, so that estimates there do not go stale
UNBOUNDED = 1 << 40  # number of tasks where the job sets none: more than any job draws


class Curriculum(Protocol):
    """A stateful stream of task indices of one domain."""

    def draw(self) -> int:
        """The next task index, in [0, tasks)."""
        ...

    def observe(self, task: int, solved: int, valid: int) -> None:
        """`solved` of `valid` samples of `task` reached the environment's maximum."""
        ...

    def state(self) -> dict[str, Any]:
        """JSON-serialisable; `resume` continues exactly here."""
        ...

    def resume(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` gave."""
        ...


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


class SuccessWindow:
    """Prefers tasks that the policy solves sometimes; explores by `uniform` otherwise.

    Success is a Beta(1, 1) posterior per task, with forgetting per visit. At most `capacity` tasks are remembered;
    beyond it the one visited longest ago is forgotten, which bounds the state that is saved with every publication.
    """

    def __init__(self, seed: int, tasks: int, capacity: int = 4096) -> None:
        self._seed = seed
        self._fresh = Uniform(seed, tasks)
        self._capacity = capacity
        self._draws = 0
        self._beliefs: dict[int, tuple[float, float]] = {}  # task -> (alpha, beta), oldest visit first

    def estimate(self, task: int) -> float:
        """Posterior mean of the success rate of `task`; 0.5 if it was never seen."""
        alpha, beta = self._beliefs.get(task, (1.0, 1.0))
        return alpha / (alpha + beta)

    def draw(self) -> int:
        """A task inside the window, or (one draw in ten, and while there is none) the next of `uniform`."""
        self._draws += 1
        inside = sorted(task for task in self._beliefs if WINDOW[0] <= self.estimate(task) <= WINDOW[1])
        if not inside or self._chance("probe") < PROBE:
            return self._fresh.draw()
        return inside[int(self._chance("pick") * len(inside))]

    def observe(self, task: int, solved: int, valid: int) -> None:
        """Update the task's posterior; a visit without valid samples is no evidence."""
        if valid == 0:
            return
        alpha, beta = self._beliefs.pop(task, (1.0, 1.0))
        alpha = 1.0 + FORGETTING * (alpha - 1.0) + solved
        beta = 1.0 + FORGETTING * (beta - 1.0) + (valid - solved)
        self._beliefs[task] = (alpha, beta)
        while len(self._beliefs) > self._capacity:
            del self._beliefs[next(iter(self._beliefs))]

    def state(self) -> dict[str, Any]:
        """All of it, for JSON."""
        beliefs = [[task, alpha, beta] for task, (alpha, beta) in self._beliefs.items()]
        return {"fresh": self._fresh.state(), "draws": self._draws, "beliefs": beliefs}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` gave."""
        self._fresh.resume(state["fresh"])
        self._draws = int(state["draws"])
        self._beliefs = {int(task): (float(alpha), float(beta)) for task, alpha, beta in state["beliefs"]}

    def _chance(self, what: str) -> float:
        """Uniform in [0, 1), fixed by seed, draw and purpose."""
        return fraction(f"{self._seed}/{self._draws}/{what}")


CURRICULA = ("uniform", "success_window")


def make(name: str, seed: int, tasks: int, capacity: int) -> Curriculum:
    """The curriculum called `name`; Rejected if there is none."""
    if name == "uniform":
        return Uniform(seed, tasks)
    if name == "success_window":
        return SuccessWindow(seed, tasks, capacity)
    raise Rejected(f"no curriculum named {name!r}", field="curriculum", hint=f"known: {', '.join(CURRICULA)}")


def permuted(position: int, size: int, key: str) -> int:
    """Image of `position` under a permutation of range(size) chosen by `key`; no table is built.

    A four-round Feistel network over the next even power of two, walked until it lands inside the range.
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    value = position
    while True:
        left, right = value >> half, value & mask
        for round_number in range(4):
            left, right = right, left ^ (_word(f"{key}/{round_number}/{right}") & mask)
        value = left << half | right
        if value < size:
            return value


def fraction(key: str) -> float:
    """A number in [0, 1) that depends on `key` alone."""
    return (_word(key) >> 11) / (1 << 53)


def _word(key: str) -> int:
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big")
