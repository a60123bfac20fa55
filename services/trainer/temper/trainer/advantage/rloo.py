"""RLOO (arXiv 2402.14740): each reward against the mean of the others, ``n/(n-1)·(r - mean)``."""

from temper.trainer.advantage.base import Floats, Scores


def estimate(scores: Scores) -> Floats:
    """[sample] advantages; 0 in groups of one."""
    out = scores.zeros()
    for members in scores.comparable():
        rewards = scores.rewards[members]
        out[members] = (rewards - rewards.mean()) * (members.size / (members.size - 1))
    return out
