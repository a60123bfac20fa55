"""GRPO (arXiv 2402.03300): ``(r - mean) / (s + 1e-6)`` with the sample standard deviation (n-1)."""

from temper.trainer.advantage.base import EPS, Floats, Scores, is_flat


def estimate(scores: Scores) -> Floats:
    """[sample] advantages; exactly 0 in groups of one and in groups whose rewards are all the same."""
    out = scores.zeros()
    for members in scores.comparable():
        rewards = scores.rewards[members]
        if not is_flat(rewards):
            out[members] = (rewards - rewards.mean()) / (rewards.std(ddof=1) + EPS)
    return out
