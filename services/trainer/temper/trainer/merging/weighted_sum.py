"""``Σ λ_d g_d``: the gradient of the mixed loss; the default."""

from temper.trainer.advantage import Floats
from temper.trainer.merging.base import Domains


def coefficients(domains: Domains) -> Floats:
    """[domain] λ."""
    return domains.share
