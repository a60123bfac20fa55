"""How asynchronous a step was, and how well its two sides agree: a few numbers of a step, and three of each domain. Pure.

The names are fixed, however many domains a job has: what is known by domain is a map by domain, never a metric's name.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from temper.trainer.advantage.base import ALIKE
from temper.trainer.samples import Sample

if TYPE_CHECKING:
    from temper.trainer.reports import StepFacts

OF_METRICS = ("mismatch_k1", "mismatch_k3", "mismatch_slope", "ess")


@dataclass(frozen=True, slots=True)
class ByDomain:
    """Shares and means by domain; a domain without anything to take them of is left out."""

    masked: Mapping[str, float]
    """Of its samples."""
    flat: Mapping[str, float]
    """Of its tasks with at least two valid samples: those whose samples all earned the same."""
    staleness: Mapping[str, float]
    """Mean versions behind of its samples at consumption."""


def by_domain(facts: StepFacts) -> ByDomain:
    """The three of every domain of a step."""
    behind = [
        (group.domain, float(age))
        for group, age in zip(facts.groups, facts.staleness, strict=True)
        for _ in group.samples
    ]
    return ByDomain(
        masked=_means((sample.domain, float(not sample.valid)) for sample in facts.samples),
        flat=_means(_flat(facts.samples)),
        staleness=_means(behind),
    )


def of_step(facts: StepFacts) -> dict[str, float]:
    """The few numbers that a watcher of a job sees; without those that the algorithm does not have."""
    found = {name: facts.outcome.metrics[name] for name in OF_METRICS if name in facts.outcome.metrics}
    found = {name: value for name, value in found.items() if math.isfinite(value)}
    if facts.samples:
        found["masked_share"] = sum(not sample.valid for sample in facts.samples) / len(facts.samples)
    if facts.staleness:
        found["staleness_max"] = float(max(facts.staleness))
    if flat := [value for _, value in _flat(facts.samples)]:
        found["flat_share"] = sum(flat) / len(flat)
    return found


def _flat(samples: Iterable[Sample]) -> list[tuple[str, float]]:
    """(domain, 1 if all earned the same) of each task with at least two valid rewards."""
    rewards: defaultdict[tuple[str, Hashable], list[float]] = defaultdict(list)
    for sample in samples:
        if sample.valid and math.isfinite(sample.reward):
            rewards[sample.domain, sample.group].append(sample.reward)
    return [
        (domain, float(max(found) - min(found) <= ALIKE))
        for (domain, _), found in rewards.items()
        if len(found) > 1
    ]


def _means(values: Iterable[tuple[str, float]]) -> dict[str, float]:
    gathered: defaultdict[str, list[float]] = defaultdict(list)
    for name, value in values:
        gathered[name].append(value)
    return {name: sum(found) / len(found) for name, found in gathered.items()}
