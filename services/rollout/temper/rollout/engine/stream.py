"""Random numbers by counter: a hash of (seed, sample index, position), the same for every engine.

splitmix64 (Steele, Lea, Flood 2014) is the mixer; its output passes BigCrush, and it is a few integer operations, so a
step's uniforms for the whole batch are one vectorised expression.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mix(value: int) -> int:
    """Scramble 64 bits."""
    value = (value + _GOLDEN) & _MASK
    value = ((value ^ (value >> 30)) * _FIRST) & _MASK
    value = ((value ^ (value >> 27)) * _SECOND) & _MASK
    return value ^ (value >> 31)


def stream_key(seed: int, sample_index: int) -> int:
    """Key of the stream of one sample."""
    return mix(mix(seed & _MASK) ^ mix(sample_index + 1))


def uniforms(keys: NDArray[np.uint64], positions: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Uniforms in [0, 1) with 53 bits, one per (key, position). Shapes: ``[rows]``."""
    value = keys + (positions + np.uint64(1)) * np.uint64(_GOLDEN)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(_FIRST)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(_SECOND)
    value ^= value >> np.uint64(31)
    return (value >> np.uint64(11)).astype(np.float64) * 2.0**-53
