"""Prometheus series of the sandbox service."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from temper.sandbox.engine.base import CommandResult

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0)


class Metrics:
    """Few series, no label that grows with the work."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.sessions = Gauge("temper_sandbox_sessions", "Live sessions", registry=registry)
        self.warm = Gauge("temper_sandbox_warm", "Fresh sandboxes ready", registry=registry)
        self.created = Histogram(
            "temper_sandbox_create_seconds", "Time to a ready sandbox", buckets=_SECONDS, registry=registry
        )
        self.ended = Counter("temper_sandbox_sessions_ended", "Ended sessions", ["end"], registry=registry)
        self.commands = Counter(
            "temper_sandbox_commands", "Commands by outcome", ["outcome"], registry=registry
        )
        self.command_s = Histogram(
            "temper_sandbox_command_seconds", "Wall time of a command", buckets=_SECONDS, registry=registry
        )
        self.cpu_s = Counter("temper_sandbox_cpu_seconds", "CPU time of commands", registry=registry)
        self.verify_s = Histogram(
            "temper_sandbox_verify_seconds",
            "Wall time of a verification",
            buckets=_SECONDS,
            registry=registry,
        )
        self.verifier_failures = Counter(
            "temper_sandbox_verifier_failures", "Verifications without a verdict", registry=registry
        )
        self.lost_records = Counter(
            "temper_sandbox_lost_records", "Session records dropped while the log was away", registry=registry
        )

    def saw(self, result: CommandResult) -> None:
        """Count one command."""
        self.commands.labels(result.outcome.value).inc()
        self.command_s.observe(result.evidence.wall_s)
        self.cpu_s.inc(result.evidence.cpu_s)
