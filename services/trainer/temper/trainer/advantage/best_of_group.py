"""The pass@k objective: only the best sample of a group learns, by its lead over the second best."""

import numpy as np

from temper.trainer.advantage.base import Floats, Scores


def estimate(scores: Scores) -> Floats:
    """[sample] advantages; a tie for the best gives 0 to everybody, and so does a group of one."""
    out = scores.zeros()
    for members in scores.comparable():
        order = members[np.argsort(scores.rewards[members], kind="stable")]
        out[order[-1]] = scores.rewards[order[-1]] - scores.rewards[order[-2]]
    return out
