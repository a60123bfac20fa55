"""When nothing happens in a job: say so once in a while, and publish again what must have been lost."""

from __future__ import annotations

from collections.abc import Sequence

from temper.api.job.v1.platform_pb2 import Presence
from temper.scheduler.config import JobsConfig
from temper.scheduler.facts import JobFacts
from temper.scheduler.signals import Announce
from temper.scheduler.state import notice
from temper.scheduler.watchdog import Stall, diagnose

_REPEAT = 4  # stall periods between two notices about the same silence


class Alarm:
    """Measures silence on a monotonic clock. Progress is a group's record or a new policy record."""

    def __init__(self, settings: JobsConfig, now: float) -> None:
        self._settings = settings
        self._last = now
        self._next_notice = settings.stall_s
        self._next_reissue = 0.0
        self.reissues = 0

    def progress(self, now: float) -> None:
        """Something happened."""
        self._last = now
        self._next_notice = self._settings.stall_s
        self._next_reissue = 0.0

    def idle_s(self, now: float) -> float:
        """Seconds of silence."""
        return now - self._last

    def is_due(self, now: float) -> bool:
        """Whether it is time to look for a reason."""
        return self.idle_s(now) >= self._next_notice

    def sound(
        self, facts: JobFacts, present: Sequence[Presence], now: float
    ) -> tuple[Stall, Announce] | None:
        """The reason for a silence that has lasted long enough, and what to tell; None if all is as it should be."""
        stall = diagnose(facts, present, self.idle_s(now))
        self._next_notice = self.idle_s(now) + _REPEAT * self._settings.stall_s
        if stall is None:
            return None
        return stall, notice(
            "warning", "stalled", stall.message, key=f"{self._last:.3f}/{self.idle_s(now):.0f}"
        )

    def wants_reissue(self, facts: JobFacts, stall: Stall, now: float) -> bool:
        """Whether unfinished groups must have been lost: live workers, and a silence longer than a group should take."""
        patience = max(self._settings.reissue_after_s, 3 * facts.job.spec.rollout.group_deadline_s)
        if stall.waiting_for != "rollout" or stall.absent or self.idle_s(now) < patience + self._next_reissue:
            return False
        self._next_reissue = self.idle_s(now)
        self.reissues += 1
        return True
