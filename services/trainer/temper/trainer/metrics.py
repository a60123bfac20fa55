"""Prometheus series of the trainer; few, and none by job."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from temper.trainer.reports import StepFacts, Timing


class TrainerMetrics:
    """All series of one process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.jobs = Gauge("temper_trainer_jobs", "Jobs being trained.", registry=registry)
        self.steps = Counter("temper_trainer_steps_total", "Optimizer steps.", ["outcome"], registry=registry)
        self.groups = Counter(
            "temper_trainer_groups_total", "Groups settled.", ["outcome"], registry=registry
        )
        self.masked = Counter(
            "temper_trainer_masked_samples_total", "Samples masked.", ["reason"], registry=registry
        )
        self.tokens = Counter("temper_trainer_tokens_total", "Action tokens trained on.", registry=registry)
        self.seconds = Counter(
            "temper_trainer_seconds_total", "Seconds by activity.", ["activity"], registry=registry
        )
        self.step_seconds = Histogram(
            "temper_trainer_step_seconds",
            "Seconds of forward, backward and update.",
            buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100),
            registry=registry,
        )
        self.alarms = Counter(
            "temper_trainer_alarms_total",
            "Things that should not happen: see the log.",
            ["kind"],
            registry=registry,
        )
        self.snapshots = Counter(
            "temper_trainer_snapshots_total", "Snapshots.", ["level", "outcome"], registry=registry
        )
        self.recoveries = Counter(
            "temper_trainer_recoveries_total", "Restarts from a snapshot.", registry=registry
        )
        self.idle_share = Gauge(
            "temper_trainer_idle_share",
            "Share of the time since its start in which no engine of this process computed a step.",
            registry=registry,
        )

    def count_step(self, facts: StepFacts, timing: Timing) -> None:
        """Book one finished step."""
        self.steps.labels("skipped" if facts.outcome.skipped else "trained").inc()
        self.groups.labels("consumed").inc(len(facts.groups))
        self.tokens.inc(facts.outcome.tokens)
        self.step_seconds.observe(timing.compute)
        for activity in ("wait", "data", "compute", "publish"):
            self.seconds.labels(activity).inc(getattr(timing, activity))
        for sample in facts.samples:
            if not sample.valid:
                self.masked.labels(sample.reason).inc()
