"""How many sandboxes will be asked for soon, from the tasks that were announced. Pure: times are given.

Whoever materialises tasks plays them soon after: so many sandboxes per task as it has been lately (samples of a group, less those
that use no tool). Announced and asked-for are compared over a window; what has left it teaches the ratio.
"""

import math
from collections import deque
from typing import Final

_WINDOW_S: Final = 60.0
_PRIOR: Final = 8.0
"""Tasks that the first guess, one sandbox per task, is worth."""
_MEMORY: Final = 4096.0
"""Tasks after which what was learned is halved, so that a change of habits is seen."""


class Forecast:
    """The demand for one kind of sandbox."""

    def __init__(self, window_s: float = _WINDOW_S) -> None:
        self._window_s = window_s
        self._announced: deque[tuple[float, int]] = deque()
        self._taken: deque[float] = deque()
        self._past_announced = 0.0
        self._past_taken = 0.0

    def announce(self, tasks: int, now: float) -> None:
        """So many tasks will be played."""
        self._announced.append((now, tasks))

    def take(self, now: float) -> None:
        """A sandbox was asked for."""
        self._taken.append(now)

    @property
    def ratio(self) -> float:
        """Sandboxes per task, as learned."""
        return (self._past_taken + _PRIOR) / (self._past_announced + _PRIOR)

    def demand(self, now: float) -> int:
        """Sandboxes still to come for what was announced."""
        self._learn(now - self._window_s)
        expected = sum(tasks for _, tasks in self._announced) * self.ratio
        return max(0, math.ceil(expected - len(self._taken)))

    def _learn(self, before: float) -> None:
        while self._announced and self._announced[0][0] <= before:
            self._past_announced += self._announced.popleft()[1]
        while self._taken and self._taken[0] <= before:
            self._taken.popleft()
            self._past_taken += 1
        if self._past_announced > _MEMORY:
            self._past_announced /= 2
            self._past_taken /= 2
