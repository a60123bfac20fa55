"""OPO (arXiv 2505.23585): the baseline is the length-weighted mean ``Σ len·r / Σ len``."""

from temper.trainer.advantage.base import Floats, Scores


def estimate(scores: Scores) -> Floats:
    """[sample] advantages; 0 in groups of one and where no sample has an action token."""
    out = scores.zeros()
    for members in scores.comparable():
        rewards, lengths = scores.rewards[members], scores.lengths[members].astype(float)
        if lengths.sum() > 0:
            out[members] = rewards - (lengths * rewards).sum() / lengths.sum()
    return out
