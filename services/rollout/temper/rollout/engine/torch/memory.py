"""What fits into memory, asked before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from temper.rollout.engine.torch.architecture import Architecture
from temper.rollout.engine.torch.kv import slot_bytes
from temper.rollout.engine.torch.sizes import UNIT, peak_units
from temper.runtime.errors import Rejected

_FLOAT = 4  # bytes


@dataclass(frozen=True, slots=True)
class Budget:
    """Bounds of an engine's memory."""

    kv_tokens: int
    """Tokens of the KV pool, rounded up to whole units."""
    memory_mib: int
    """Most MiB that weights and KV may take together; 0 is no bound."""

    @property
    def units(self) -> int:
        """Units of the pool."""
        return -(-self.kv_tokens // UNIT)

    def check(self, shape: Architecture, version: int, versions: int) -> None:
        """Refuse a version that does not fit beside ``versions`` others and the pool."""
        weights, pool = weight_bytes(shape) >> 20, self.units * UNIT * slot_bytes(shape) >> 20
        needed = weights * (versions + 1) + pool
        if self.memory_mib and needed > self.memory_mib:
            raise Rejected(
                f"version {version} needs {needed} MiB: {versions + 1} versions of {weights} MiB and a KV pool of "
                f"{pool} MiB, but memory_mib is {self.memory_mib}; lower kv_tokens or raise memory_mib"
            )


def weight_bytes(shape: Architecture) -> int:
    """Memory of one version's fused fp32 tensors. The head is a copy even where the model ties it to the embedding."""
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    layer = shape.width * (2 * query + 2 * key + 3 * shape.hidden + 2) + query + 2 * key
    return _FLOAT * (shape.layers * layer + 2 * shape.vocab * shape.width + shape.width)


def longest_context(kv_tokens: int, max_context: int) -> int:
    """The context limit that a pool can honour: any request below it can run, alone if it must."""
    units = -(-kv_tokens // UNIT)
    low, high = 0, max_context
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if peak_units(middle) <= units else (low, middle - 1)
    return low
