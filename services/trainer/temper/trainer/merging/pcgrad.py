"""PCGrad (arXiv 2001.06782): each gradient loses its part against every other one that it conflicts with.

For each i, over j in random order: if ``g_i·g_j < 0`` then ``g_i <- g_i - (g_i·g_j/‖g_j‖²)·g_j`` with the original ``g_j``; then the sum with
λ. Projected gradients stay combinations of the original ones, so their coefficients are all that is kept.
"""

import numpy as np

from temper.trainer.advantage import Floats
from temper.trainer.merging.base import TINY, Domains


def coefficients(domains: Domains) -> Floats:
    """[domain] of ``Σ_i λ_i g_i'``."""
    return domains.share @ projections(domains)


def projections(domains: Domains) -> Floats:
    """[domain, domain] row i: the coefficients of ``g_i'``."""
    count, gram = len(domains.names), domains.gram
    rows = np.eye(count)
    order = np.random.default_rng(domains.seed)
    for i in range(count):
        for j in order.permutation(count):
            against = float(rows[i] @ gram[:, j])
            if i != j and against < 0 and gram[j, j] > TINY**2:
                rows[i, j] -= against / gram[j, j]
    return rows
