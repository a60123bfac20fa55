"""Randomness without a generator: a hash of who asks and how often, so that the state of a curriculum is a few numbers."""

from __future__ import annotations

import hashlib


def fraction(key: str) -> float:
    """A number in [0, 1) that depends on `key` alone."""
    return (word(key) >> 11) / (1 << 53)


def word(key: str) -> int:
    """64 bits that depend on `key` alone."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big")


def permuted(position: int, size: int, key: str) -> int:
    """Image of `position` under a permutation of range(size) chosen by `key`; no table is built.

    A four-round Feistel network over the next even power of two, walked until it lands inside the range.
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    value = position
    while True:
        left, right = value >> half, value & mask
        for round_number in range(4):
            left, right = right, left ^ (word(f"{key}/{round_number}/{right}") & mask)
        value = left << half | right
        if value < size:
            return value
