"""The counters that people watch: what the books say, and what recent records say."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from temper.api.common.v1.common_pb2 import Purpose
from temper.api.job.v1.job_pb2 import JobProgress, JobState
from temper.api.job.v1.platform_pb2 import Presence
from temper.api.rollout.v1.rollout_pb2 import GroupRecord
from temper.api.trainer.v1.trainer_pb2 import PolicyRecord
from temper.scheduler.evaluation import is_valid
from temper.scheduler.facts import JobFacts
from temper.scheduler.points import AFTER, BEFORE

RECENT_SAMPLES = 256  # per domain: about two steps of a small job
RECENT_S = 10.0  # seconds over which rates are taken


class Meter:
    """Sliding windows over records as they arrive. Not saved: after a restart they fill again."""

    def __init__(self) -> None:
        self._rewards: dict[str, deque[tuple[float, bool]]] = {}
        self._ages: deque[int] = deque(maxlen=RECENT_SAMPLES)
        self._arrivals: deque[tuple[float, int, int]] = deque()  # (when, tokens, episodes)
        self._idle_sum, self._idle_count = 0.0, 0  # over the whole life, as the trainer's share is
        self._steps: deque[tuple[float, int]] = deque(maxlen=20)

    def observe(self, record: GroupRecord, version: int, now: float) -> None:
        """A group came back while `version` was the published policy."""
        tokens = sum(sample.action_tokens for sample in record.samples)
        self._arrivals.append((now, tokens, len(record.samples)))
        if record.purpose != Purpose.PURPOSE_TRAIN:
            return
        window = self._rewards.setdefault(record.domain, deque(maxlen=RECENT_SAMPLES))
        for sample in record.samples:
            if is_valid(sample):
                window.append((sample.reward, sample.solved))
                self._ages.append(max(0, version - sample.min_version))

    def observe_step(self, step: int, now: float) -> None:
        """The trainer has taken `step` steps."""
        if not self._steps or self._steps[-1][1] != step:
            self._steps.append((now, step))

    def observe_rollout(self, presences: Sequence[Presence]) -> None:
        """How busy rollout workers are at this moment: by their engines' own account, else by slots taken."""
        workers = [each for each in presences if each.service == "rollout"]
        if workers:
            self._idle_sum += 1.0 - sum(min(1.0, _busy(each)) for each in workers) / len(workers)
            self._idle_count += 1

    def fill(self, progress: JobProgress, now: float) -> None:
        """Write the windows' means into `progress`."""
        for domain, window in self._rewards.items():
            if window:
                progress.domain_reward[domain] = sum(reward for reward, _ in window) / len(window)
                progress.domain_solved[domain] = sum(solved for _, solved in window) / len(window)
        progress.staleness = _mean(self._ages)
        progress.rollout_idle = self._idle_sum / self._idle_count if self._idle_count else 0.0
        while self._arrivals and self._arrivals[0][0] < now - RECENT_S:
            self._arrivals.popleft()
        progress.tokens_per_s = sum(tokens for _, tokens, _ in self._arrivals) / RECENT_S
        progress.episodes_per_s = sum(episodes for _, _, episodes in self._arrivals) / RECENT_S
        progress.eta_s = self._eta(progress)

    def _eta(self, progress: JobProgress) -> float:
        if len(self._steps) < 2 or progress.step >= progress.total_steps:
            return 0.0
        (first_s, first), (last_s, last) = self._steps[0], self._steps[-1]
        if last <= first:
            return 0.0
        return (progress.total_steps - progress.step) * (last_s - first_s) / (last - first)


def compose(facts: JobFacts, meter: Meter, presences: Sequence[Presence], now: float) -> JobProgress:
    """All counters of this moment."""
    record = facts.policy or PolicyRecord()
    phases = facts.job.spec.phases
    phase = min(facts.where(record).phase, len(phases) - 1)
    done, asked = facts.points.counts()
    progress = JobProgress(
        phase=phase,
        phase_name=phases[phase].name,
        step=record.step,
        total_steps=facts.total_steps,
        version=record.version,
        groups_published=facts.ledger.published,
        groups_consumed=record.consumed_groups,
        groups_dropped=facts.dropped(),
        groups_in_flight=facts.ledger.in_flight,
        domain_groups=facts.sampler.issued,
        sandboxes_in_use=int(sum(_number(each, "in_use") for each in presences if each.service == "sandbox")),
        trainer_idle=record.idle_share,
        activity=activity(facts),
        wall_s=now - facts.job.created_at.ToNanoseconds() / 1e9,
        eval_done=done,
        eval_total=asked,
        diagnostics=record.diagnostics,
    )
    meter.fill(progress, now)
    return progress


def activity(facts: JobFacts) -> str:
    """What the job does, in words."""
    pending = facts.points.pending()
    match facts.job.state:
        case JobState.JOB_STATE_PENDING:
            return "admitting environments"
        case JobState.JOB_STATE_STARTING:
            return "waiting for the first policy"
        case JobState.JOB_STATE_RUNNING if BEFORE in pending:
            return "evaluating (before)"
        case JobState.JOB_STATE_RUNNING if pending:
            return f"training, evaluating ({', '.join(pending)})"
        case JobState.JOB_STATE_RUNNING:
            return "training"
        case JobState.JOB_STATE_FINISHING if AFTER in pending:
            return "evaluating (after)"
        case state:
            return JobState.Name(state).removeprefix("JOB_STATE_").lower()


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else 0.0


def _busy(worker: Presence) -> float:
    if "busy_share" in worker.status:
        return _number(worker, "busy_share")
    slots = _number(worker, "slots")
    return _number(worker, "in_use") / slots if slots else 0.0


def _number(presence: Presence, key: str) -> float:
    try:
        return float(presence.status[key]) if key in presence.status else 0.0
    except ValueError:
        return 0.0
