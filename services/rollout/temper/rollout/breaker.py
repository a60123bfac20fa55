"""A circuit breaker: while an environment cannot be served, one caller asks now and then, and the others wait.

Without it every episode in flight repeats its own call, and an outage of the sandbox service is met by a storm when it comes back.
Pure: no clock, no I/O; times are seconds given by the caller.
"""

from __future__ import annotations

from dataclasses import dataclass

TRIPS = 5
"""Failures in a row after which callers wait."""
FIRST_REST_S, LONGEST_REST_S = 0.5, 5.0
PROBE_S = 0.5
"""Others look again so often whether the one that asks has had an answer."""


@dataclass(slots=True)
class Breaker:
    """State of one environment. Closed while fewer than ``TRIPS`` calls in a row have failed."""

    failures: int = 0
    rests_until: float = 0.0
    probing: bool = False

    def wait(self, now: float) -> float:
        """Seconds to wait before asking; 0: ask now. Of several that wait, one is let through when the rest is over."""
        if self.failures < TRIPS:
            return 0.0
        if now < self.rests_until:
            return self.rests_until - now
        if self.probing:
            return PROBE_S
        self.probing = True
        return 0.0

    def failed(self, now: float) -> bool:
        """A call found nobody; says whether callers wait from here on and did not before."""
        self.failures += 1
        self.probing = False
        beyond = self.failures - TRIPS
        if beyond >= 0:
            self.rests_until = now + min(LONGEST_REST_S, FIRST_REST_S * 2.0 ** min(beyond, 8))
        return beyond == 0

    def answered(self) -> None:
        """A call got an answer, or was turned away by somebody who lives."""
        self.failures, self.probing = 0, False

    def left(self) -> None:
        """Whoever asked is gone without an outcome."""
        self.probing = False
