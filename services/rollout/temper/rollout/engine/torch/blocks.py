"""The book of the KV pool: which slots hold what, who uses it, and what may be used again.

The pool is a line of token slots, cut into *units* of 768. A context is cut at positions 256, 512, ... into *segments*; each
lies in one *row*: a run of slots of one size class. A unit holds rows of one class only (768 is a multiple of every class), so
neighbouring rows lie at a constant stride and many sequences are attended by one call on a view, without a gather. The class
of a row depends on its sequence's own length, never on its neighbours: that is what keeps numbers batch-invariant.

The rows of a class form an :class:`Arena`, packed without holes: first those in use, then those that only hold *hashed*
blocks (16 tokens each) for requests to come. Packing moves rows, so a row's slots are looked up when a step is laid, not before.

Full segments are shared by reference; of a partly matching one the matching blocks are copied. A block's key is a hash over
its parent's key, its tokens and a salt; tokens and parent are stored and compared on a hit, so a collision never reuses KV.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from temper.rollout.engine.base import Blocks
from temper.rollout.engine.torch.sizes import BLOCK, CLASSES, UNIT, units_for


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


@dataclass(slots=True, eq=False)
class Row:
    """A run of slots for one segment of one context, or of several that share it."""

    size: int
    """Its class."""
    start: int = -1
    """First slot, as of now."""
    refs: int = 1
    """Contexts that use it."""
    index: int = -1
    """Its place in the arena."""
    entries: list[Entry] = field(default_factory=list)
    """Its hashed blocks."""
    parent: Row | None = None
    """Row of the segment before, as hashed."""
    children: int = 0
    """Rows whose parent it is."""
    pages: object = None
    """Summaries of its keys, once it is full and sparse decode wants them; see :mod:`.pages`."""


@dataclass(frozen=True, slots=True)
class Block:
    """What is hashed: equal blocks hold equal KV."""

    key: bytes
    """Digest of everything that shaped the block."""
    parent: bytes
    """Key of the block before, or the salt."""
    tokens: tuple[int, ...]
    """The block's own tokens."""


@dataclass(slots=True, eq=False)
class Entry:
    """A block that can be found."""

    block: Block
    """What it holds."""
    row: Row
    """Where."""
    at: int
    """Which block of the row."""


@dataclass(slots=True, eq=False)
class Arena:
    """All rows of one class, packed: ``rows[:active]`` are in use, the rest is cached."""

    size: int
    """The class."""
    units: list[int] = field(default_factory=list)
    """Its units, in the order of its places."""
    rows: list[Row] = field(default_factory=list)
    """By place."""
    active: int = 0
    """How many are in use."""

    @property
    def per_unit(self) -> int:
        """Rows of a unit."""
        return UNIT // self.size

    @property
    def full(self) -> bool:
        """Whether it has no place left."""
        return len(self.rows) == len(self.units) * self.per_unit

    def slot(self, place: int) -> int:
        """First slot of a place."""
        return self.units[place // self.per_unit] * UNIT + place % self.per_unit * self.size

    def settle(self, row: Row, place: int) -> None:
        """Enter a row at a place."""
        if place == len(self.rows):
            self.rows.append(row)
        else:
            self.rows[place] = row
        row.index, row.start = place, self.slot(place)


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
        held = sum(per[size] * arena.active for size, arena in self.arenas.items())
        cached = sum(per[size] * (len(arena.rows) - arena.active) for size, arena in self.arenas.items())
        total = self.units * (UNIT // BLOCK)
        return Blocks(total=total, free=total - held - cached, evictable=cached, held=held)

    def fits(self, needs: Sequence[int], instead_of: Iterable[Row] = ()) -> bool:
        """Whether rows of these classes could all be taken, every cached one given up, and others dropped once."""
        counts = {size: arena.active for size, arena in self.arenas.items()}
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
        row = Row(size)
        if arena.active < len(arena.rows):
            self._relocate(arena, arena.active, len(arena.rows))
        arena.settle(row, arena.active)
        arena.active += 1
        return row

    def hold(self, row: Row) -> None:
        """One more user."""
        if row.refs == 0:
            del self._cached[row]
            arena = self.arenas[row.size]
            self._exchange(arena, row.index, arena.active)
            arena.active += 1
        row.refs += 1

    def drop(self, row: Row) -> None:
        """One user less. What nobody uses stays findable if it is hashed, until its slots are wanted."""
        row.refs -= 1
        if row.refs:
            return
        arena = self.arenas[row.size]
        arena.active -= 1
        if row.entries:
            self._exchange(arena, row.index, arena.active)
            self._cached[row] = None
            return
        hole = row.index
        if hole != arena.active:
            self._relocate(arena, arena.active, hole)
            arena.settle(row, arena.active)
        self._remove(row)

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
        last = len(arena.rows) - 1
        if row.index != last:
            self._relocate(arena, last, row.index)
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
