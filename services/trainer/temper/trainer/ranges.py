"""A set of group indexes as few inclusive ranges: bounded by gaps, not by time."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator


class IndexSet:
    """Integers, kept as sorted, disjoint, non-adjacent inclusive ranges.

    Example: ``IndexSet([(0, 4), (7, 7)])`` holds 0..4 and 7; adding 5 and 6 leaves one range, 0..7.
    """

    __slots__ = ("_ranges",)

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._ranges: list[tuple[int, int]] = []
        for first, last in ranges:
            for index in range(first, last + 1):
                self.add(index)

    def add(self, index: int) -> bool:
        """Whether the index is new."""
        at = bisect_right(self._ranges, (index, float("inf")))  # ranges[:at] begin at or before index
        if at and self._ranges[at - 1][1] >= index:
            return False
        joins_left = at > 0 and self._ranges[at - 1][1] == index - 1
        joins_right = at < len(self._ranges) and self._ranges[at][0] == index + 1
        first = self._ranges[at - 1][0] if joins_left else index
        last = self._ranges[at][1] if joins_right else index
        self._ranges[at - joins_left : at + joins_right] = [(first, last)]
        return True

    def __contains__(self, index: int) -> bool:
        at = bisect_right(self._ranges, (index, float("inf")))
        return at > 0 and self._ranges[at - 1][1] >= index

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self._ranges)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The ranges, in order."""
        return iter(self._ranges)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IndexSet) and self._ranges == other._ranges

    __hash__ = None  # type: ignore[assignment]  # it changes
