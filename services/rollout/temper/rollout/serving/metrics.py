"""Prometheus series of the HTTP front."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from temper.rollout.engine.base import Stats
from temper.rollout.serving.generation import Ended

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)


class ServingMetrics:
    """One object per process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.requests = Counter(
            "temper_serving_requests", "Requests by path and status.", ["path", "status"], registry=registry
        )
        self.seconds = Histogram(
            "temper_serving_request_seconds",
            "Seconds from request to last byte.",
            ["path"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.first_token = Histogram(
            "temper_serving_first_token_seconds",
            "Seconds from placement to the first shown token.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.running = Gauge("temper_serving_requests_running", "Requests under way.", registry=registry)
        self.outputs = Counter(
            "temper_serving_outputs",
            "Outputs by variant and ending.",
            ["variant", "ending"],
            registry=registry,
        )
        self.tokens = Counter(
            "temper_serving_output_tokens", "Output tokens by variant.", ["variant"], registry=registry
        )
        self.cached = Counter(
            "temper_serving_cached_tokens",
            "Prompt tokens served from a cache.",
            ["variant"],
            registry=registry,
        )

    def ended(self, variant: str, ended: Ended | None) -> None:
        """Count one output; None for one that was refused, failed, or left by its client."""
        if ended is None:
            self.outputs.labels(variant, "none").inc()
            return
        self.outputs.labels(variant, ended.ending).inc()
        self.tokens.labels(variant).inc(len(ended.completion.tokens))
        self.cached.labels(variant).inc(ended.completion.cached_tokens)


class EngineGauges(Collector):
    """Engine counters, read when they are scraped. ``look``: stats by (variant, replica)."""

    def __init__(self, look: Callable[[], Mapping[tuple[str, str], Stats]]) -> None:
        self._look = look

    def collect(self) -> Iterable[Metric]:
        names = (
            "version",
            "running",
            "waiting",
            "kv_tokens",
            "generated_tokens",
            "prefill_tokens",
            "preemptions",
        )
        families = {
            name: GaugeMetricFamily(
                f"temper_serving_engine_{name}", f"Engine: {name}.", labels=("variant", "replica")
            )
            for name in names
        }
        for labels, stats in self._look().items():
            for name in names:
                families[name].add_metric(labels, float(getattr(stats, name)))
        return list(families.values())
