"""Prometheus series of the qa service."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram


class Metrics:
    """Few series: verdicts, time of checks, records seen by the live rates."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._verdicts = Counter("temper_qa_verdicts", "Verdicts given.", ["verdict"], registry=registry)
        self._seconds = Histogram(
            "temper_qa_check_seconds", "All checks of one environment.", registry=registry
        )
        self._groups = Counter("temper_qa_groups", "Groups counted in live solve rates.", registry=registry)

    def checked(self, verdict: str, seconds: float) -> None:
        """One environment was judged."""
        self._verdicts.labels(verdict).inc()
        self._seconds.observe(seconds)

    def observed(self, groups: int) -> None:
        """Groups were read from the log."""
        self._groups.inc(groups)
