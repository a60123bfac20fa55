"""Dr. GRPO (arXiv 2503.20783): ``r - mean``, without the division by the standard deviation."""

from temper.trainer.advantage.base import Floats, Scores


def estimate(scores: Scores) -> Floats:
    """[sample] advantages; 0 in groups of one."""
    out = scores.zeros()
    for members in scores.comparable():
        rewards = scores.rewards[members]
        out[members] = rewards - rewards.mean()
    return out
