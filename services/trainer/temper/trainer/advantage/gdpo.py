"""GDPO (arXiv 2601.05242): every component of the reward is standardised in its group, then the weighted sum over the batch.

A component that is rare or small keeps its say: in a sum taken first, the one that varies most drowns the others.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from temper.trainer.advantage.base import EPS, Component, Floats, Scores, is_flat, whiten

WHOLE = "reward"
"""Name of the only component of a reward of one piece."""


def estimate(scores: Scores) -> Floats:
    """[sample] advantages; groups of one keep 0 and do not count in the deviation."""
    out = scores.zeros()
    used = list(scores.comparable())
    for members in used:
        out[members] = _of_group(scores, members)
    if used:
        everyone = np.concatenate(used)
        if not is_flat(out[everyone]):
            out[everyone] = whiten(out[everyone])
    return out


def _of_group(scores: Scores, members: NDArray[np.int64]) -> Floats:
    """[member] sum of weight times standardised component."""
    parts = [scores.components[int(i)] if scores.components else {} for i in members]
    weights = {name: part.weight for each in parts for name, part in each.items()} or {WHOLE: 1.0}
    out = np.zeros(members.size)
    for name, weight in sorted(weights.items()):
        values = np.array(
            [
                _value(part, name, reward, weights)
                for part, reward in zip(parts, scores.rewards[members], strict=True)
            ]
        )
        if not is_flat(values):
            out += weight * (values - values.mean()) / (values.std(ddof=1) + EPS)
    return out


def _value(part: Mapping[str, Component], name: str, reward: float, weights: Mapping[str, float]) -> float:
    """A member's component. One without any (it never gave an answer) has its reward spread evenly over all."""
    if not part:
        return float(reward) / sum(weights.values())
    return part[name].value if name in part else 0.0
