"""What a worker says about itself in its presence."""

from __future__ import annotations

from collections.abc import Mapping

from temper.rollout.metrics import RolloutMetrics
from temper.rollout.permits import Permits
from temper.rollout.policies import Policies
from temper.rollout.state import Worker
from temper.runtime.clock import Clock


class Status:
    """Called at every beat; rates are over the time since the beat before."""

    def __init__(
        self,
        worker: Worker,
        policies: Policies,
        permits: Permits,
        metrics: RolloutMetrics,
        clock: Clock,
        engine_name: str,
    ) -> None:
        self._worker, self._policies, self._clock, self._engine_name = worker, policies, clock, engine_name
        self._permits, self._metrics = permits, metrics
        self._last_time = clock.monotonic()
        self._last: dict[str, tuple[int, float]] = {}

    def __call__(self) -> Mapping[str, object]:
        """Facts for :class:`temper.runtime.presence.Presence`."""
        now = self._clock.monotonic()
        elapsed = max(now - self._last_time, 1e-6)
        stats = {job_id: engine.stats() for job_id, engine in self._policies.engines().items()}
        seen = {job_id: (each.generated_tokens, each.busy_seconds) for job_id, each in stats.items()}
        tokens = sum(count - self._last.get(job_id, (0, 0.0))[0] for job_id, (count, _) in seen.items())
        busy = sum(seconds - self._last.get(job_id, (0, 0.0))[1] for job_id, (_, seconds) in seen.items())
        self._last, self._last_time = seen, now
        permits = {
            "allowed": self._permits.limit,
            "playing": self._permits.in_use,
            "waiting": self._permits.waiting,
        }
        for state, count in permits.items():
            self._metrics.permits.labels(state).set(count)
        facts: dict[str, object] = {
            "engine": self._engine_name,
            "slots": self._worker.slots,
            "in_use": len(self._worker.running),
            "sequences": sum(each.running for each in stats.values()),
            "kv_tokens": sum(each.kv_tokens for each in stats.values()),
            "tokens_per_s": round(tokens / elapsed, 1),
            "busy_share": round(min(1.0, busy / elapsed), 3),
            "busy_seconds": round(sum(each.busy_seconds for each in stats.values()), 3),
            "generated_tokens": sum(each.generated_tokens for each in stats.values()),
        }
        facts |= {f"episodes_{state}": count for state, count in permits.items()}
        facts["kv_pressure"] = str(self._permits.pressure)
        facts |= {f"stale.{job_id}": why for job_id, why in self._worker.overdue().items()}
        facts |= {f"version.{job_id}": each.version for job_id, each in stats.items()}
        facts |= {f"problem.{job_id}": why[:300] for job_id, why in self._worker.complaints().items()}
        return facts
