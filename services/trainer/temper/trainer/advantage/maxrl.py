"""MaxRL: ``(r - mean) / (mean + 1e-6)``; rewards must not be negative."""

import numpy as np

from temper.runtime.errors import Rejected
from temper.trainer.advantage.base import EPS, Floats, Scores


def estimate(scores: Scores) -> Floats:
    """[sample] advantages; 0 in groups of one. Raises Rejected on a negative reward."""
    if bool(np.any(scores.rewards[scores.valid] < 0)):
        raise Rejected(
            "maxrl needs rewards >= 0",
            field="algorithm_choices.advantage",
            hint="choose another advantage, or an environment whose reward range starts at 0",
        )
    out = scores.zeros()
    for members in scores.comparable():
        rewards = scores.rewards[members]
        out[members] = (rewards - rewards.mean()) / (rewards.mean() + EPS)
    return out
