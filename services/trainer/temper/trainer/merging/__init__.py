"""How the gradients of several domains become one, by name; one file each.

Every method is a linear combination of the domains' gradients whose coefficients follow from their inner products. So a method is a
pure function of the Gram matrix, and an engine only needs to sum inner products over its shards, whatever its layout is.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from temper.trainer.advantage import Floats
from temper.trainer.merging import gradnorm, norm_equal, pcgrad, weighted_sum
from temper.trainer.merging.base import Domains

__all__ = ["METHODS", "Domains", "Method"]

Method = Callable[[Domains], Floats]
"""From what is known about the domains to one coefficient for each mean gradient."""

METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "sum": weighted_sum.coefficients,
        "norm_equal": norm_equal.coefficients,
        "pcgrad": pcgrad.coefficients,
        "gradnorm": gradnorm.coefficients,
    }
)
