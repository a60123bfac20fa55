"""Rewards of different domains brought to one scale: divided by a running deviation of each domain.

Group-wise standardisation does this by itself; estimators that keep the size of rewards (``dr_grpo``, ``rloo``, ``reinforce_pp``, GAE ...)
let the domain with the widest range speak loudest without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from temper.trainer.advantage.base import Scores

MEMORY = 0.99
LEAST = 1e-3
"""A domain whose rewards hardly vary is not blown up further."""


@dataclass(slots=True)
class RewardScale:
    """Exponentially weighted mean and mean square of the rewards of each domain; part of a snapshot."""

    mean: dict[str, float] = field(default_factory=dict[str, float])
    square: dict[str, float] = field(default_factory=dict[str, float])

    def deviation(self, domain: str) -> float:
        """Running standard deviation of a domain, at least ``LEAST``; 1 for a domain not seen yet."""
        if domain not in self.mean:
            return 1.0
        return max(LEAST, max(0.0, self.square[domain] - self.mean[domain] ** 2) ** 0.5)

    def learn(self, scores: Scores, domains: Sequence[str]) -> None:
        """Take in the valid rewards of one step; ``domains`` are those of the samples."""
        of = np.array(domains)
        for domain in sorted(set(domains)):
            rewards = scores.rewards[(of == domain) & scores.valid]
            if rewards.size:
                self._move(self.mean, domain, float(rewards.mean()))
                self._move(self.square, domain, float((rewards**2).mean()))

    def _move(self, memory: dict[str, float], domain: str, value: float) -> None:
        memory[domain] = MEMORY * memory.get(domain, value) + (1.0 - MEMORY) * value

    def scaled(self, scores: Scores, domains: Sequence[str]) -> Scores:
        """The same samples with rewards over their domain's deviation."""
        deviations = np.array([self.deviation(domain) for domain in domains])
        return replace(scores, rewards=scores.rewards / deviations)

    def facts(self) -> dict[str, dict[str, float]]:
        """For a snapshot."""
        return {"mean": dict(self.mean), "square": dict(self.square)}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Mapping[str, float]]) -> RewardScale:
        """The inverse of ``facts``."""
        return cls(dict(facts.get("mean", {})), dict(facts.get("square", {})))
