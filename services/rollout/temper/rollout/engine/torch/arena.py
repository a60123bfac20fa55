"""What the book of the KV pool is made of: rows, the hashed blocks in them, and the line of rows of one class."""

from __future__ import annotations

from dataclasses import dataclass, field

from temper.rollout.engine.torch.sizes import UNIT


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
    """All rows of one class, packed: ``rows[:active]`` are in use or asleep, the rest is cached."""

    size: int
    """The class."""
    units: list[int] = field(default_factory=list)
    """Its units, in the order of its places."""
    rows: list[Row] = field(default_factory=list)
    """By place."""
    active: int = 0
    """How many lie before the cached ones."""
    asleep: dict[Row, None] = field(default_factory=dict)
    """Those among them that nobody uses."""

    @property
    def used(self) -> int:
        """How many are in use."""
        return self.active - len(self.asleep)

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
