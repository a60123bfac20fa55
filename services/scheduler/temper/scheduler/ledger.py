"""Which groups exist and what became of them.

    published  =  settled  +  in flight          always, at every instant and after every crash

Indexes are given out 0, 1, 2, … without gaps. The trainer settles them (consumed, or dropped with a reason) and
publishes the settled set as ranges; this side only takes unions, so records may be lost, repeated or come late.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from temper.api.common.v1.common_pb2 import IndexRange
from temper.api.rollout.v1.rollout_pb2 import GroupCommand


class IndexSet:
    """A set of non-negative integers as sorted, disjoint, inclusive ranges; small while it has few holes."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._ranges: list[tuple[int, int]] = []
        for first, last in ranges:
            self.add(first, last)

    def add(self, first: int, last: int) -> None:
        """Add first..last, both included."""
        if last < first:
            return
        kept: list[tuple[int, int]] = []
        for low, high in self._ranges:
            if high + 1 < first or last + 1 < low:
                kept.append((low, high))
            else:
                first, last = min(first, low), max(last, high)
        self._ranges = sorted([*kept, (first, last)])

    def __contains__(self, index: int) -> bool:
        return any(low <= index <= high for low, high in self._ranges)

    def __len__(self) -> int:
        return sum(high - low + 1 for low, high in self._ranges)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The ranges, ascending."""
        return iter(self._ranges)


class GroupLedger:
    """The books of one job's groups. Evaluation groups are not in it: they are counted by their point."""

    def __init__(self) -> None:
        self._next = 0
        self._settled = IndexSet()
        self._in_flight: dict[int, GroupCommand] = {}
        self._returned: set[int] = set()

    @property
    def published(self) -> int:
        """Groups published so far; also the next index."""
        return self._next

    @property
    def settled(self) -> IndexSet:
        return self._settled

    @property
    def in_flight(self) -> int:
        """Groups published and not settled: each holds a credit."""
        return len(self._in_flight)

    def publish(self, command: GroupCommand) -> None:
        """Enter a group; its index must be the next one."""
        assert command.index == self._next, f"group {command.index} entered as number {self._next}"
        self._in_flight[self._next] = command
        self._next += 1

    def settle(self, ranges: Iterable[IndexRange]) -> int:
        """Take over the trainer's settled ranges; returns how many groups were news.

        An index that was never published cannot be settled: such a claim is cut at the last published one.
        """
        before = len(self._settled)
        for each in ranges:
            self._settled.add(each.first, min(each.last, self._next - 1))
        for index in [index for index in self._in_flight if index in self._settled]:
            del self._in_flight[index]
            self._returned.discard(index)
        return len(self._settled) - before

    def settle_rest(self) -> int:
        """Training is over: nobody will settle what is in flight, so it is dropped here; returns how many."""
        rest = len(self._in_flight)
        self._settled.add(0, self._next - 1)
        self._in_flight.clear()
        self._returned.clear()
        return rest

    def returned(self, index: int) -> bool:
        """Note that the group's record is in the log; False if it was noted before or is not in flight."""
        if index in self._returned or index not in self._in_flight:
            return False
        self._returned.add(index)
        return True

    def outstanding(self) -> list[GroupCommand]:
        """In flight without a record: what rollout workers still owe, oldest first."""
        return [command for index, command in sorted(self._in_flight.items()) if index not in self._returned]

    def waiting_for_trainer(self) -> int:
        """In flight with a record: what the trainer has not settled yet."""
        return len(self._returned)

    def save(self) -> tuple[int, list[IndexRange], dict[int, bytes], list[int]]:
        """(next index, settled ranges, index -> serialized command, returned indexes)."""
        ranges = [IndexRange(first=first, last=last) for first, last in self._settled]
        unsettled = {index: command.SerializeToString() for index, command in self._in_flight.items()}
        return self._next, ranges, unsettled, sorted(self._returned)

    def load(
        self,
        next_index: int,
        ranges: Iterable[IndexRange],
        unsettled: dict[int, bytes],
        returned: Iterable[int],
    ) -> None:
        """Continue from what `save` gave."""
        self._next = next_index
        self._settled = IndexSet((each.first, each.last) for each in ranges)
        self._in_flight = {index: GroupCommand.FromString(body) for index, body in sorted(unsettled.items())}
        self._returned = set(returned) & set(self._in_flight)

    def check(self) -> None:
        """Assert the balance."""
        assert self._next == len(self._settled) + len(self._in_flight), (
            f"published {self._next} != settled {len(self._settled)} + in flight {len(self._in_flight)}"
        )
