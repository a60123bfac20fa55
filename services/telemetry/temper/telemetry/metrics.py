"""Prometheus series of the telemetry service."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram


class Metrics:
    """Few series: records and rows stored, time of inserts, questions."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._records = Counter("temper_telemetry_records", "Records stored.", ["topic"], registry=registry)
        self._skipped = Counter(
            "temper_telemetry_skipped", "Records not understood.", ["topic"], registry=registry
        )
        self._inserts = Histogram(
            "temper_telemetry_insert_seconds", "One batch of one topic.", registry=registry
        )
        self._queries = Counter(
            "temper_telemetry_queries", "Questions answered.", ["outcome"], registry=registry
        )

    def stored(self, topic: str, records: int, seconds: float) -> None:
        """A batch is in the database."""
        self._records.labels(topic).inc(records)
        self._inserts.observe(seconds)

    def skipped(self, topic: str) -> None:
        """A record could not be read."""
        self._skipped.labels(topic).inc()

    def asked(self, outcome: str) -> None:
        """A question was answered or refused."""
        self._queries.labels(outcome).inc()
