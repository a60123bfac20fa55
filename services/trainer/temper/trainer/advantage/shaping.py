"""Rewards as the estimators see them: what is taken off before a group is compared."""

from dataclasses import replace

import numpy as np

from temper.trainer.advantage.base import Component, Scores

OVERLONG = "overlong"
"""Name of the penalty among the components of a reward."""


def soft_overlong(scores: Scores, longest: float, buffer: float) -> Scores:
    """DAPO's penalty on length (arXiv 2503.14476, eq. 13); ``longest`` 0 leaves everything as it is.

    0 while ``len <= longest - buffer``; then ``((longest - buffer) - len) / buffer``; -1 from ``longest`` on.
    """
    if longest <= 0:
        return scores
    penalty = np.clip(((longest - buffer) - scores.lengths) / buffer, -1.0, 0.0)
    parts = [
        {**part, OVERLONG: Component(float(taken), 1.0)} if part else part
        for part, taken in zip(scores.components, penalty, strict=False)
    ]
    return replace(scores, rewards=scores.rewards + penalty, components=parts)
