"""What DPO and reward models share: the Bradley-Terry loss over pairs, and its derivative by each score."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from temper.trainer.advantage import Floats, Scores
from temper.trainer.algorithms.base import Settings


@dataclass(frozen=True, slots=True)
class Preferences:
    """The loss over some pairs."""

    loss: float
    """Mean of ``-log sigmoid(s_c - s_r - margin)``; 0 without pairs."""
    slope: Floats
    """[sample] its derivative by each score; 0 for samples in no pair."""
    accuracy: float
    """Share of pairs that are in the right order."""
    gap: float
    """Mean of ``s_c - s_r``."""
    pairs: int

    @property
    def nothing(self) -> str:
        """Why there is nothing to learn."""
        return "" if self.pairs else "no task has samples with different rewards"

    def metrics(self, prefix: str) -> dict[str, float]:
        """For the step's record."""
        return {
            f"{prefix}_accuracy": self.accuracy,
            f"{prefix}_gap": self.gap,
            f"{prefix}_pairs": float(self.pairs),
        }


def bradley_terry(scores: Floats, pairs: Sequence[tuple[int, int]], *, margin: float = 0.0) -> Preferences:
    """The loss of (chosen, rejected) index pairs over ``[sample]`` scores."""
    slope = np.zeros(scores.shape[0], dtype=np.float64)
    if not pairs:
        return Preferences(0.0, slope, 0.0, 0.0, 0)
    chosen, rejected = (np.array(side) for side in zip(*pairs, strict=True))
    gap = scores[chosen] - scores[rejected]
    value = np.logaddexp(0.0, -(gap - margin))
    push = np.exp(-np.logaddexp(0.0, gap - margin)) / len(pairs)  # sigmoid(-(gap - margin)) without overflow
    np.add.at(slope, chosen, -push)
    np.add.at(slope, rejected, push)
    return Preferences(float(value.mean()), slope, float((gap > 0).mean()), float(gap.mean()), len(pairs))


def rewards_themselves(scores: Scores, _: Settings) -> Floats:
    """[sample] rewards: pairs are made from them."""
    return np.where(scores.valid, scores.rewards, 0.0)
