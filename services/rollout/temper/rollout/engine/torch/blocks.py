"""The book of the KV pool: which slots hold what, who uses it, and what may be used again.

The pool is a line of token slots, cut into *units* of 768. A context is cut at positions 256, 512, ... into *segments*; each
lies in one *row*: a run of slots of one size class. A unit holds rows of one class only (768 is a multiple of every class), so
neighbouring rows lie at a constant stride and many sequences are attended by one call on a view, without a gather. The class
of a row depends on its sequence's own length, never on its neighbours: that is what keeps numbers batch-invariant.

The rows of a class form an :class:`Arena`, packed without holes: first those in use, then those that only hold *hashed*
blocks (16 tokens each) for requests to come. A row that falls out of use among the first stays there, *asleep*, as long as few do:
the next row taken gets its place. Packing moves rows, so a row's slots are looked up when a step is laid, not before.

Full segments are shared by reference; of a partly matching one the matching blocks are copied. A block's key is a hash over
its parent's key, its tokens and a salt; tokens and parent are stored and compared on a hit, so a collision never reuses KV.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from temper.rollout.engine.base import Blocks
from temper.rollout.engine.torch.arena import Arena, Block, Entry, Row
from temper.rollout.engine.torch.sizes import BLOCK, CLASSES, UNIT, units_for

_ASLEEP = 8  # one of so many rows may be asleep: attention reads it for nothing, moving it is three copies


class Mover(Protocol):
    """Who moves the numbers when the book moves a row."""

    def move(self, source: int, target: int, size: int) -> None:
        """Copy a row of one class."""
        ...

    def swap(self, one: int, two: int, size: int) -> None:
        """Exchange two rows of one class."""
        ...

    def copy(self, source: Row, at: int, target: Row, to: int, count: int) -> None:
        """Copy tokens from offset ``at`` of a row to offset ``to`` of another, of any class."""
        ...


class Pool:
    """The book. Not thread-safe."""

    def __init__(self, units: int, mover: Mover) -> None:
        self.units = units
        self.arenas = {size: Arena(size) for size in CLASSES}
        self._mover = mover
        self._free = [True] * units
        self._index: dict[bytes, Entry] = {}
        self._cached: dict[Row, None] = {}  # least recently used first

    def book(self) -> Blocks:
        """Count the blocks."""
        per = {size: size // BLOCK for size in CLASSES}
        held = sum(per[size] * arena.used for size, arena in self.arenas.items())
        cached = sum(per[size] * (len(arena.rows) - arena.used) for size, arena in self.arenas.items())
        total = self.units * (UNIT // BLOCK)
        return Blocks(total=total, free=total - held - cached, evictable=cached, held=held)

    def fits(self, needs: Sequence[int], instead_of: Iterable[Row] = ()) -> bool:
        """Whether rows of these classes could all be taken, every cached one given up, and others dropped once."""
        counts = {size: arena.used for size, arena in self.arenas.items()}
        for row in instead_of:
            counts[row.size] -= row.refs == 1
        for size in needs:
            counts[size] += 1
        return units_for(counts) <= self.units

    def take(self, size: int) -> Row:
        """A row for one user. The caller has asked :meth:`fits`."""
        arena = self.arenas[size]
        while arena.full and not self._extend(arena):
            self._evict()
        row, place = Row(size), arena.active
        if arena.asleep:
            place = arena.asleep.popitem()[0].index
        else:
            arena.active += 1
        if place < len(arena.rows):
            self._relocate(arena, place, len(arena.rows))
        arena.settle(row, place)
        return row

    def hold(self, row: Row) -> None:
        """One more user."""
        if row.refs == 0:
            del self._cached[row]
            arena = self.arenas[row.size]
            if row in arena.asleep:
                del arena.asleep[row]
            else:
                self._exchange(arena, row.index, arena.active)
                arena.active += 1
        row.refs += 1

    def drop(self, row: Row) -> None:
        """One user less. What nobody uses stays findable if it is hashed, until its slots are wanted."""
        row.refs -= 1
        if row.refs:
            return
        arena = self.arenas[row.size]
        if row.entries:
            self._cached[row] = arena.asleep[row] = None
            self._settle_down(arena)
            return
        arena.active -= 1
        hole = row.index
        if hole != arena.active:
            self._relocate(arena, arena.active, hole)
            arena.settle(row, arena.active)
        self._remove(row)
        self._settle_down(arena)

    def _settle_down(self, arena: Arena) -> None:
        """Move rows asleep behind those in use: the last ones, for that costs nothing, and any that are too many."""
        while arena.asleep:
            last = arena.rows[arena.active - 1]
            if last not in arena.asleep:
                if len(arena.asleep) <= arena.active // _ASLEEP:
                    return
                row = next(iter(arena.asleep))
                self._exchange(arena, row.index, last.index)
                last = row
            del arena.asleep[last]
            arena.active -= 1

    def grow(self, row: Row, size: int, used: int) -> Row:
        """Move a row that only the caller uses to a larger class; ``used`` of its slots hold something."""
        larger = self.take(size)
        self._mover.copy(row, 0, larger, 0, used)
        larger.entries, row.entries = row.entries, []
        for entry in larger.entries:
            entry.row = larger
        larger.parent, row.parent = row.parent, None
        self.drop(row)
        return larger

    def copy(self, source: Row, at: int, target: Row, to: int, count: int) -> None:
        """Copy ``count`` slots from offset ``at`` of one row to offset ``to`` of another."""
        self._mover.copy(source, at, target, to, count)

    def publish(self, block: Block, row: Row, at: int) -> None:
        """Make a block findable, its forward being done. The first of two equal ones stays."""
        if block.key in self._index:
            return
        if (
            not row.entries
            and (before := self._index.get(block.parent)) is not None
            and before.row is not row
        ):
            row.parent = before.row
            before.row.children += 1
        entry = Entry(block, row, at)
        row.entries.append(entry)
        self._index[block.key] = entry

    def find(self, block: Block) -> Entry | None:
        """A block that holds the same KV: the key is looked up, parent and tokens are compared."""
        entry = self._index.get(block.key)
        return entry if entry is not None and entry.block == block else None

    def forget(self) -> None:
        """Make nothing findable: the weights have changed."""
        for row in self._rows():
            self._unhash(row)
        for row in list(self._cached):
            del self._cached[row]
            self._remove(row)

    def _rows(self) -> Iterator[Row]:
        return (row for arena in self.arenas.values() for row in arena.rows)

    def _extend(self, arena: Arena) -> bool:
        """Give an arena a unit, next to its others if possible: arenas start far apart in the pool."""
        home = arena.units[-1] + 1 if arena.units else CLASSES.index(arena.size) * self.units // len(CLASSES)
        for step in range(self.units):
            unit = (home + step) % self.units
            if self._free[unit]:
                self._free[unit] = False
                arena.units.append(unit)
                return True
        return False

    def _evict(self) -> None:
        """Give up the least recently used row that none depends on."""
        row = next((row for row in self._cached if not row.children), None)
        # A chain may hang on a row of another context that held the same blocks; then the oldest goes.
        row = row or next(iter(self._cached))
        del self._cached[row]
        self._unhash(row)
        self._remove(row)

    def _unhash(self, row: Row) -> None:
        for entry in row.entries:
            self._index.pop(entry.block.key, None)
        row.entries = []
        if row.parent is not None:
            row.parent.children -= 1
            row.parent = None

    def _remove(self, row: Row) -> None:
        """Close the gap an unused row leaves, and give back the last unit once it is empty."""
        arena = self.arenas[row.size]
        last, hole = len(arena.rows) - 1, row.index
        if row in arena.asleep:
            # The last in use takes its place, and what is cached is packed behind.
            del arena.asleep[row]
            arena.active -= 1
            if hole != arena.active:
                self._relocate(arena, arena.active, hole)
            hole = arena.active
        if hole != last:
            self._relocate(arena, last, hole)
        arena.rows.pop()
        row.index = row.start = -1
        while len(arena.rows) <= (len(arena.units) - 1) * arena.per_unit:
            self._free[arena.units.pop()] = True

    def _relocate(self, arena: Arena, source: int, target: int) -> None:
        row = arena.rows[source]
        self._mover.move(row.start, arena.slot(target), arena.size)
        arena.settle(row, target)

    def _exchange(self, arena: Arena, one: int, two: int) -> None:
        if one == two:
            return
        first, second = arena.rows[one], arena.rows[two]
        self._mover.swap(first.start, second.start, arena.size)
        arena.settle(first, two)
        arena.settle(second, one)
