"""Watches how far the rollout engine's probabilities are from the trainer's: level and trend.

An engine that differs a little is corrected for; one that drifts will end a run. Both are alarms, and the trend often comes first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

WINDOW = 50  # steps
LEVEL = 0.1  # mean |log mu - log pi_old|; engines that agree stay under 0.01, and one version of staleness under 0.05
RISE = 0.05  # growth of the fitted line over a full window


@dataclass(slots=True)
class MismatchWatch:
    """The last steps' mean absolute log-ratio."""

    values: deque[float] = field(default_factory=lambda: deque[float](maxlen=WINDOW))

    def add(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Note one step; returns its ``mismatch_slope`` (per step) if the algorithm reports a mismatch."""
        if "mismatch_abs" not in metrics:
            return {}
        self.values.append(metrics["mismatch_abs"])
        return {"mismatch_slope": slope(self.values)}

    @classmethod
    def of(cls, values: Iterable[float]) -> MismatchWatch:
        """One that has seen these steps before a restart."""
        return cls(deque((float(value) for value in values), maxlen=WINDOW))

    def alarm(self) -> str:
        """What is wrong, in words; empty when nothing is."""
        if self.values and self.values[-1] > LEVEL:
            return f"mean |log mu - log pi_old| is {self.values[-1]:.3f}, over {LEVEL}"
        if len(self.values) == WINDOW and (rise := slope(self.values) * WINDOW) > RISE:
            return f"mean |log mu - log pi_old| grew by {rise:.3f} over {WINDOW} steps"
        return ""


def slope(values: deque[float]) -> float:
    """Least-squares slope over equally spaced points; 0 for fewer than two."""
    count = len(values)
    if count < 2:
        return 0.0
    middle, mean = (count - 1) / 2, sum(values) / count
    spread = sum((at - middle) ** 2 for at in range(count))
    return sum((at - middle) * (value - mean) for at, value in enumerate(values)) / spread
