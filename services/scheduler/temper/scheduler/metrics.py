"""Prometheus series of the scheduler. Few, and none of them per job: jobs are in KV, events and ClickHouse."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class Metrics:
    """Series of one process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.jobs = Gauge("temper_scheduler_jobs", "Jobs that this process drives", registry=registry)
        self.activations = Counter(
            "temper_scheduler_activations", "Jobs taken over by this process", registry=registry
        )
        self.groups = Counter(
            "temper_scheduler_groups", "Groups published, by purpose", ["purpose"], registry=registry
        )
        self.reissued = Counter(
            "temper_scheduler_reissued_groups",
            "Groups published again because they were lost",
            registry=registry,
        )
        self.poisoned = Counter(
            "temper_scheduler_poisoned_groups", "Groups moved to the dead letters", registry=registry
        )
        self.stalls = Counter(
            "temper_scheduler_stalls",
            "Alarms about a job without progress, by what it waits for",
            ["waiting_for"],
            registry=registry,
        )
        self.decision_s = Histogram(
            "temper_scheduler_decision_seconds",
            "From signals to effects, without performing them",
            registry=registry,
            buckets=(0.0001, 0.0005, 0.002, 0.01, 0.05, 0.25, 1),
        )
