"""Rewards from a reward model, and whether it can still be trusted.

A step's samples are scored by the reward model as it is at that step, so no sample is ever trained on an old opinion. Where a verifier
has spoken too, the share of pairs of one task that the two put in opposite order is watched: a policy that has learned to please the
model and not the verifier shows there first, and above its limit the model has no say in that step.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from temper.trainer.advantage import Component, Floats
from temper.trainer.advantage.base import ALIKE
from temper.trainer.algorithms.base import Settings
from temper.trainer.samples import Sample

JUDGE = "reward_model"
"""Name of the model's opinion among the components of a reward."""


@dataclass(frozen=True, slots=True)
class Opinion:
    """What the reward model said about the samples of one step."""

    scores: NDArray[np.float32]
    """[sample] its output; NaN where nobody acted."""
    version: int
    """Updates it had seen."""
    disagreement: float
    """Share of comparable pairs that model and verifier put in opposite order; 0 without such pairs."""
    pairs: int
    """Comparable pairs."""

    def metrics(self, weight: float) -> dict[str, float]:
        """For the step's record; ``weight`` is what the opinion counted."""
        finite = self.scores[np.isfinite(self.scores)]
        return {
            "rm_version": float(self.version),
            "rm_weight": weight,
            "rm_disagreement": self.disagreement,
            "rm_score_mean": float(finite.mean()) if finite.size else 0.0,
        }


def opinion(samples: Sequence[Sample], scores: NDArray[np.float32], version: int) -> Opinion:
    """Compare scores with the verifier's rewards, task by task; a tie of the scores is half a disagreement."""
    rewards = np.array([sample.reward for sample in samples], dtype=np.float64)
    against = total = 0.0
    for members in _tasks(samples, scores):
        better = rewards[members][:, None] > rewards[members][None, :] + ALIKE
        gap = scores[members][:, None] - scores[members][None, :]
        total += float(better.sum())
        against += float((better & (gap < 0)).sum()) + 0.5 * float((better & (gap == 0)).sum())
    return Opinion(scores, version, against / total if total else 0.0, int(total))


def _tasks(samples: Sequence[Sample], scores: NDArray[np.float32]) -> Iterator[NDArray[np.int64]]:
    group = np.array([sample.group for sample in samples], dtype=np.int64)
    usable = np.array([sample.valid for sample in samples], dtype=np.bool_) & np.isfinite(scores)
    for task in np.unique(group):
        yield np.flatnonzero((group == task) & usable)


def trusted(found: Opinion, settings: Settings) -> float:
    """What the opinion counts: the phase's ``rm_weight``, or 0 above ``rm_max_disagreement``."""
    return settings["rm_weight"] if found.disagreement <= settings["rm_max_disagreement"] else 0.0


def rewarded(samples: Sequence[Sample], found: Opinion, weight: float) -> list[Sample]:
    """Samples with ``(1 - weight)·reward + weight·sigmoid(score)``: a score has no unit, so it is brought into (0, 1)."""
    squashed: Floats = 1.0 / (1.0 + np.exp(-np.clip(found.scores.astype(np.float64), -60.0, 60.0)))
    return [
        _blended(sample, weight, float(value)) if sample.valid and np.isfinite(value) else sample
        for sample, value in zip(samples, squashed, strict=True)
    ]


def _blended(sample: Sample, weight: float, value: float) -> Sample:
    parts = {
        name: Component(part.value, (1.0 - weight) * part.weight) for name, part in sample.components.items()
    }
    if parts:
        parts[JUDGE] = Component(value, weight)
    return replace(sample, reward=(1.0 - weight) * sample.reward + weight * value, components=parts)
