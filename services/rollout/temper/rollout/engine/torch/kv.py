"""The tensor behind the book: keys and values of all layers, by slot."""

from __future__ import annotations

import torch
from torch import Tensor

from temper.rollout.engine.torch.architecture import Architecture
from temper.rollout.engine.torch.arena import Row
from temper.rollout.engine.torch.sizes import UNIT


class Cache:
    """``[layers, slots, 2 * kv_heads * head_dim]``, but inside a row of n slots ``[2, kv_heads, n, head_dim]``.

    Keys of one head lie together in a row: kernels read them twice as fast as token by token when heads are small.
    """

    def __init__(self, shape: Architecture, units: int) -> None:
        self.planes, self.head_dim = 2 * shape.kv_heads, shape.head_dim
        # Zeros, not empty: masked positions take part in products, and NaN times 0 is NaN. The system hands them out
        # page by page when they are first touched, so a large pool costs what is used of it.
        self.tensor = torch.zeros(
            shape.layers, units * UNIT, self.planes * self.head_dim, dtype=torch.float32
        )

    def move(self, source: int, target: int, size: int) -> None:
        """Copy a row."""
        self.tensor[:, target : target + size] = self.tensor[:, source : source + size]

    def swap(self, one: int, two: int, size: int) -> None:
        """Exchange two rows."""
        first, second = self.tensor[:, one : one + size], self.tensor[:, two : two + size]
        rescued = first.clone()
        first.copy_(second)
        second.copy_(rescued)

    def copy(self, source: Row, at: int, target: Row, to: int, count: int) -> None:
        """Copy tokens between rows."""
        self._tokens(target, to, count).copy_(self._tokens(source, at, count))

    def _tokens(self, row: Row, at: int, count: int) -> Tensor:
        """View ``[layers, planes, count, head_dim]``."""
        size = (len(self.tensor), self.planes, count, self.head_dim)
        steps = (self.tensor.stride(0), row.size * self.head_dim, self.head_dim, 1)
        return self.tensor.as_strided(size, steps, row.start * self.tensor.stride(1) + at * self.head_dim)


def slot_bytes(shape: Architecture) -> int:
    """Memory of one token's KV."""
    return shape.layers * 2 * shape.kv_heads * shape.head_dim * 4
