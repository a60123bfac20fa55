"""How many rows an fp32 product needs, so that a row's result is the same in every bit however many there are.

A product of few rows runs another kernel than one of many, with sums in another order. Where that ends depends on the CPU and on
the library: four rows are enough for some, others need a multiple of sixteen. So it is measured, once per shape, when a policy is
loaded. All multiples that pass give the same bits, those of a product of many rows; a larger one only costs more.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import torch

# None under 4: loops over all numbers of a step then end with a whole vector, as they do for any number of rows.
_MULTIPLES = (4, 8, 16)
_COUNTS = (*range(4, 36, 4), 48, 64, 100, 132, 256)
_MANY = 260  # rows of the product that others are compared with


def row_multiple(shapes: Iterable[tuple[int, int]]) -> int:
    """The smallest number whose multiples of rows all give equal products with matrices ``[in, out]`` of these shapes.

    If none does, the largest: there is no better one.
    """
    wrong = set().union(*(_wrong_counts(*shape, torch.get_num_threads()) for shape in set(shapes)))
    fit = (each for each in _MULTIPLES if not any(count % each == 0 for count in wrong))
    return next(fit, _MULTIPLES[-1])


@lru_cache(maxsize=256)
def _wrong_counts(inputs: int, outputs: int, threads: int) -> frozenset[int]:  # noqa: ARG001 - part of the key: kernels split by it
    """Numbers of rows whose product differs from one of many rows."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(_MANY, inputs, generator=generator)
    matrix = torch.randn(inputs, outputs, generator=generator)
    many = torch.mm(x, matrix)
    return frozenset(
        count for count in _COUNTS if not torch.equal(torch.mm(x[-count:], matrix), many[-count:])
    )
