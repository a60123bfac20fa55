"""Sizes that the pool is made of, in tokens, and how a context is cut into them."""

from __future__ import annotations

BLOCK = 16  # tokens that are hashed together
SEGMENT = 256  # tokens of a full row; prefill chunks end at its multiples
UNIT = 768  # slots: the least common multiple of the classes
CLASSES: tuple[int, ...] = (64, 96, 128, 192, 256)  # steps of 3/2 and 4/3 bound the padding by one half


def size_for(tokens: int) -> int:
    """Class of a row that holds so many tokens of a segment."""
    return next(size for size in CLASSES if size >= tokens)


def layout(tokens: int) -> list[int]:
    """Classes of the rows of a context."""
    full, rest = divmod(tokens, SEGMENT)
    return [SEGMENT] * full + ([size_for(rest)] if rest else [])


def units_for(counts: dict[int, int]) -> int:
    """Units that so many rows of each class take."""
    return sum(-(-count * size // UNIT) for size, count in counts.items())


def peak_units(tokens: int) -> int:
    """Units a context needs on its way to a length: while a row grows, the old and the new one are both there."""
    most = 0
    for length in range(1, tokens + 1, SEGMENT):
        full = length // SEGMENT
        sizes = [size for size in CLASSES if size <= size_for(min(SEGMENT, tokens - full * SEGMENT))]
        for at in range(len(sizes)):
            counts: dict[int, int] = dict.fromkeys(CLASSES, 0)
            counts[SEGMENT] = full
            for held in sizes[max(0, at - 1) : at + 1]:
                counts[held] += 1
            most = max(most, units_for(counts))
    return most
