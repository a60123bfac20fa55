"""Batch-wide standardisation: ``(r - group mean)``, divided by the (n-1) standard deviation of the whole step."""

import numpy as np

from temper.trainer.advantage.base import Floats, Scores, whiten


def estimate(scores: Scores) -> Floats:
    """[sample] advantages; groups of one keep 0 and do not count in the deviation."""
    out = scores.zeros()
    used = list(scores.comparable())
    for members in used:
        rewards = scores.rewards[members]
        out[members] = rewards - rewards.mean()
    if used:
        everyone = np.concatenate(used)
        out[everyone] = whiten(out[everyone])
    return out
