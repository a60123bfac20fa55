"""What a check is, and what it may look at."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from temper.api.qa.v1.qa_pb2 import Severity
from temper.qa.digest import Tree
from temper.qa.episodes import Episode, Measurements
from temper.qa.manifest import Manifest

TOLERANCE = 1e-9  # rewards are sums of decimal fractions
FLOOR_MARGIN = 0.02  # what an agent that knows nothing may earn above the floor
ORACLE_MARGIN = 0.1  # what an oracle may miss of the maximum


@dataclass(frozen=True, slots=True)
class Subject:
    """The environment under test."""

    manifest: Manifest
    """Its manifest."""
    tree: Tree
    """Its files."""
    bundle: bytes
    """The tar they came in."""
    digest: str
    """Digest it is registered under."""
    params_json: str
    """Effective parameters."""
    measured: Measurements
    """Episodes on the target backend."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found. Example: `Finding(False, "null agent earns 0.05, floor is 0")`."""

    passed: bool
    """Whether the rule holds."""
    evidence: str
    """What was measured."""


@dataclass(frozen=True, slots=True)
class Check:
    """One rule. Example: `Check("semantic.oracle_max", Severity.SEVERITY_ERROR, oracle_max)`."""

    id: str
    """Stable id; `<group>.<name>`."""
    severity: Severity
    """SEVERITY_ERROR blocks admission."""
    run: Callable[[Subject], Awaitable[Finding]]
    """Measures and judges."""

    @property
    def blocking(self) -> bool:
        """Whether a failure refuses the environment."""
        return self.severity == Severity.SEVERITY_ERROR


def error(name: str) -> Callable[[Callable[[Subject], Awaitable[Finding]]], Check]:
    """Decorator: the function is a check that blocks."""
    return lambda run: Check(name, Severity.SEVERITY_ERROR, run)


def warning(name: str) -> Callable[[Callable[[Subject], Awaitable[Finding]]], Check]:
    """Decorator: the function is a check that is recorded and needs a waiver."""
    return lambda run: Check(name, Severity.SEVERITY_WARNING, run)


def mean_reward(episodes: Iterable[Episode]) -> float:
    """Mean over episodes that have a verdict; 0 when none has one (another check says so)."""
    rewards = [episode.reward for episode in episodes if episode.reward is not None]
    return sum(rewards) / len(rewards) if rewards else 0.0


def listed(values: Iterable[float]) -> str:
    """Numbers for people: `1, 0.05, 0`."""
    return ", ".join(f"{value:g}" for value in values)
