"""GradNorm (arXiv 1711.02257): weights that let slow domains pull harder.

``L_grad = Σ_d |w_d‖g_d‖ - Ḡ·r_d^alpha|`` with Ḡ the mean of ``w_d‖g_d‖`` and ``r_d`` the relative inverse training rate: ``L_d(t)/L_d(0)`` over
its mean. One step down its gradient by w with the target held fixed, then ``Σ w = number of domains``. Norms are taken relative to their
mean, so that the rate has no unit.
"""

import numpy as np

from temper.trainer.advantage import Floats
from temper.trainer.merging.base import TINY, Domains

ALPHA = 1.5
RATE = 0.025
LEAST = 0.01  # a domain that weighs nothing would never come back


def coefficients(domains: Domains) -> Floats:
    """[domain] λ times weight."""
    return domains.share * domains.weight


def next_weights(weight: Floats, norms: Floats, loss: Floats, first_loss: Floats) -> Floats:
    """[domain] weights for the next step. Losses are positive: what is left to learn, now and at first."""
    if norms.mean() <= TINY:
        return weight
    relative = norms / norms.mean()
    progress = loss / first_loss
    target = float((weight * relative).mean()) * (progress / progress.mean()) ** ALPHA
    moved = weight - RATE * np.sign(weight * relative - target) * relative
    moved = np.maximum(moved, LEAST)
    return moved * weight.size / moved.sum()
