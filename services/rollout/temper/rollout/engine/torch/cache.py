"""Where keys and values lie.

A *buffer* is the KV of one sequence, contiguous and exactly as long as it must be: prefill fills one, a shared prompt is
one that many sequences are copied from, and a kept sequence waits in one. A *slab* holds the decode batch: sequences of
one size class, dense from row 0, so that a layer's attention is one call on a view. A sequence that outgrows its class
moves to the next, so padding wastes at most the ratio of two classes. The class depends on the sequence's own length
only, never on its neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch
from torch import Tensor

from temper.rollout.engine.torch.architecture import Architecture

Owner = TypeVar("Owner")

# The smallest class covers the prompts of small policies; steps of 3/2 and 4/3 bound the waste by one half.
_FIRST_CLASS = 64


def new_buffer(shape: Architecture, tokens: int) -> Tensor:
    """An empty buffer ``[layers, 2, kv_heads, tokens, head_dim]`` (keys, then values)."""
    return torch.empty(shape.layers, 2, shape.kv_heads, tokens, shape.head_dim)


def size_classes(max_context: int) -> tuple[int, ...]:
    """Token capacities 64, 96, 128, 192, … up to ``max_context``."""
    classes, size = [], _FIRST_CLASS
    while size < max_context:
        classes.append(size)
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return (*classes, max_context)


@dataclass(slots=True)
class Slab(Generic[Owner]):
    """Rows of one size class. ``owners[i]`` lives in row i; rows are dense."""

    shape: Architecture
    capacity: int
    """Tokens per row."""
    owners: list[Owner] = field(default_factory=list)
    kv: Tensor = field(init=False)
    """``[layers, rows, 2, kv_heads, capacity, head_dim]``"""

    def __post_init__(self) -> None:
        self.kv = self._allocate(0)

    def _allocate(self, rows: int) -> Tensor:
        shape = self.shape
        # Zeros, not empty: masked positions take part in the product, and NaN times 0 is NaN.
        return torch.zeros(shape.layers, rows, 2, shape.kv_heads, self.capacity, shape.head_dim)

    def add(self, owner: Owner, buffer: Tensor) -> int:
        """Copy a buffer into a new row; returns the row."""
        row = len(self.owners)
        if row == self.kv.shape[1]:
            grown = self._allocate(max(8, row * 2))
            grown[:, :row] = self.kv
            self.kv = grown
        self.owners.append(owner)
        self.kv[:, row, :, :, : buffer.shape[3]] = buffer
        return row

    def view(self, row: int, tokens: int) -> Tensor:
        """The first ``tokens`` of a row, as a buffer that shares memory."""
        return self.kv[:, row, :, :, :tokens]

    def remove(self, row: int) -> Owner | None:
        """Free a row by moving the last one into it; returns who moved."""
        mover = self.owners.pop()
        last = len(self.owners)
        if row == last:
            return None
        self.owners[row] = mover
        self.kv[:, row] = self.kv[:, last]
        return mover
