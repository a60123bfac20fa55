"""What is known about a watched job, folded from its updates; pure, so the same view can be drawn in any way."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from temper.client.live.words import verdict_line
from temper.client.sdk.types import (
    Evaluation,
    GateVerdict,
    Job,
    JobState,
    Notice,
    Progress,
    StateChange,
    Update,
)

HISTORY = 512
"""Points kept per domain for its sparkline."""


@dataclass(frozen=True, slots=True)
class PhaseBar:
    """One phase with what is done of it. Example: `PhaseBar("rl", 12, 60)`."""

    name: str
    """Name of the phase."""
    done: int
    """Steps taken."""
    steps: int
    """Steps in all."""


@dataclass(slots=True)
class JobView:
    """Feed it with `apply`, read its fields."""

    job: Job = field(default_factory=lambda: Job("", "", "unspecified"))
    """Last snapshot, with state, progress and evaluations kept up to date."""
    rewards: dict[str, deque[float]] = field(default_factory=dict[str, "deque[float]"])
    """Recent mean reward by domain, one point per step."""
    notices: deque[Notice] = field(default_factory=lambda: deque(maxlen=50))
    """Newest last."""
    _last_step: int = -1

    @property
    def progress(self) -> Progress:
        """Counters."""
        return self.job.progress

    @property
    def state(self) -> JobState:
        """State of the job."""
        return self.job.state

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self.job.ended

    @property
    def domains(self) -> list[str]:
        """Names in the order of the job file."""
        listed = [str(each["name"]) for each in self._spec_list("domains")]
        return listed or sorted(self.progress.domain_reward)

    def apply(self, update: Update) -> None:
        """Take one message of the watch."""
        match update.payload:
            case Job() as job:
                self.job = job
                self._remember(job.progress)
            case Progress() as progress:
                self.job = dataclasses.replace(self.job, progress=progress)
                self._remember(progress)
            case StateChange(state=state, reason=reason):
                ended = update.time if state in ("succeeded", "failed", "cancelled") else self.job.ended_at
                self.job = dataclasses.replace(self.job, state=state, reason=reason, ended_at=ended)
            case Evaluation() as result:
                self.job = dataclasses.replace(self.job, evals=_with(self.job.evals, result))
            case GateVerdict() as verdict:
                self._judged(verdict)
            case Notice() as notice:
                self.notices.append(notice)

    def _judged(self, verdict: GateVerdict) -> None:
        """A scheduler that takes a job over may tell of a verdict once more."""
        others = tuple(each for each in self.job.gates if each.point != verdict.point)
        new = len(others) == len(self.job.gates)
        self.job = dataclasses.replace(self.job, gates=(*others, verdict))
        if new and verdict.verdict != "pass":
            self.notices.append(Notice("warning", "gate", f"gate {verdict_line(verdict)}"))

    def say(self, message: str, level: str = "info") -> None:
        """A line of our own among the notices."""
        self.notices.append(Notice(level, "client", message))

    def bars(self) -> list[PhaseBar]:
        """Phases with their share of the steps taken."""
        bars: list[PhaseBar] = []
        before = 0
        for phase in self._spec_list("phases"):
            steps = int(phase["steps"])
            bars.append(PhaseBar(str(phase["name"]), min(max(self.progress.step - before, 0), steps), steps))
            before += steps
        return bars

    def evaluation(self, point: str, domain: str) -> Evaluation | None:
        """Result of one domain at one point."""
        return next((each for each in self.job.evals if (each.point, each.domain) == (point, domain)), None)

    def _remember(self, progress: Progress) -> None:
        if progress.step == self._last_step:
            return
        self._last_step = progress.step
        for domain, reward in progress.domain_reward.items():
            self.rewards.setdefault(domain, deque(maxlen=HISTORY)).append(reward)

    def _spec_list(self, key: str) -> list[Mapping[str, Any]]:
        return list(self.job.spec.get(key, []))


def _with(evals: tuple[Evaluation, ...], result: Evaluation) -> tuple[Evaluation, ...]:
    """`evals` with `result` in the place of an older one for the same domain and point."""
    kept = tuple(each for each in evals if (each.point, each.domain) != (result.point, result.domain))
    return (*kept, result)
