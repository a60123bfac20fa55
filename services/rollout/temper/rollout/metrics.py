"""Prometheus series of the rollout service."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class RolloutMetrics:
    """One object per process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.groups = Counter(
            "temper_rollout_groups",
            "Groups by purpose and how their delivery ended.",
            ["purpose", "end"],
            registry=registry,
        )
        self.samples = Counter(
            "temper_rollout_samples", "Samples by terminal class.", ["sample_class"], registry=registry
        )
        self.tool_calls = Counter(
            "temper_rollout_tool_calls", "Tool calls by outcome.", ["outcome"], registry=registry
        )
        self.tokens = Counter(
            "temper_rollout_action_tokens", "Tokens emitted by policies.", registry=registry
        )
        self.group_seconds = Histogram(
            "temper_rollout_group_seconds",
            "Seconds from delivery to record.",
            buckets=(0.3, 1, 3, 10, 30, 100, 300),
            registry=registry,
        )
        self.load_seconds = Histogram(
            "temper_rollout_load_seconds",
            "Seconds from announcement to serving.",
            buckets=(0.03, 0.1, 0.3, 1, 3, 10, 30),
            registry=registry,
        )
        self.running = Gauge("temper_rollout_groups_running", "Groups in flight.", registry=registry)
        self.permits = Gauge(
            "temper_rollout_episodes",
            "Episodes: allowed by KV memory, playing, waiting for a permit.",
            ["state"],
            registry=registry,
        )
        self.resumed = Counter(
            "temper_rollout_resumed_tokens",
            "Action tokens taken over from an earlier delivery instead of being generated again.",
            registry=registry,
        )
