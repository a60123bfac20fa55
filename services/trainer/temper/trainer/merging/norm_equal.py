"""``Σ λ_d ḡ·g_d/‖g_d‖`` with ḡ the mean length: no domain speaks louder than its share."""

import numpy as np

from temper.trainer.advantage import Floats
from temper.trainer.merging.base import TINY, Domains


def coefficients(domains: Domains) -> Floats:
    """[domain] λ times mean length over own length; 0 for a gradient without direction."""
    norms = domains.norms
    sized = norms > TINY
    return np.where(sized, domains.share * norms.mean() / np.where(sized, norms, 1.0), 0.0)
