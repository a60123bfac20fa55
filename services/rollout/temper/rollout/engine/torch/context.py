"""The KV of one sequence: its rows, how much of them is computed, and how it got there.

*How* matters in batch-invariant mode. A prompt token's KV depends on its position alone, whatever chunk it came in; but a
decode step gives it other bits. So a context knows which positions were prompt (:class:`Course`), recomputes the others one by
one, and puts this into the keys of its blocks: a hit is then equal in every bit or it is no hit.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field

from temper.rollout.engine.torch.arena import Block, Entry, Row
from temper.rollout.engine.torch.blocks import Pool
from temper.rollout.engine.torch.sizes import BLOCK, SEGMENT, layout


@dataclass(frozen=True, slots=True)
class Chunk:
    """Positions ``[start, stop)`` that are computed in one go."""

    start: int
    """First position."""
    stop: int
    """One past the last."""
    decode: bool
    """Whether a decode step computes it."""


@dataclass(slots=True)
class Course:
    """Which positions are prompt, computed in chunks with fixed edges, and which were decoded one by one."""

    exact: bool
    """Whether recomputation repeats it; otherwise everything known is prompt."""
    prompts: list[tuple[int, int]] = field(default_factory=list)
    """Runs of prompt, in order."""

    def chunk(self, position: int, known: int) -> Chunk:
        """The chunk that begins at a position of a context whose first ``known`` tokens are known."""
        edge = position // SEGMENT * SEGMENT
        for start, stop in reversed(self.prompts):
            if start <= position < stop:
                return Chunk(position, min(stop, edge + SEGMENT), decode=False)
        if self.exact or position == known - 1:
            return Chunk(position, position + 1, decode=True)
        return Chunk(position, min(known, edge + SEGMENT), decode=False)

    def flatten(self, known: int) -> None:
        """Everything known is one prompt from now on: it is computed anew, and faster so."""
        self.prompts = [(0, known)]

    def cuts(self, start: int, stop: int) -> tuple[int, ...]:
        """Edges of prompt within ``[start, stop)``, as part of a block's key."""
        if not self.exact:
            return ()
        runs = [(max(start, one), min(stop, two)) for one, two in self.prompts]
        return tuple(edge for run in runs if run[0] < run[1] for edge in run)


@dataclass(slots=True, eq=False)
class Context:
    """Rows and hashed blocks of one sequence, or of several that share a prompt being computed."""

    salt: bytes
    """Parent of the first block: weight version, architecture, tenant."""
    course: Course
    """How it is computed."""
    rows: list[Row] = field(default_factory=list)
    """``rows[i]`` holds positions from ``256 i`` on."""
    done: int = 0
    """Positions whose KV is there."""
    keys: list[bytes] = field(default_factory=list)
    """Keys of its complete blocks."""
    sealed: bool = False
    """Whether its KV is of more than one version: such blocks are never found by others."""
    stretch: int = 0
    """Class of its length, where rotation depends on it."""
    capacity: int = 0
    """Positions that fit its rows."""

    def measure(self) -> None:
        """Set the capacity, the rows having changed."""
        self.capacity = (len(self.rows) - 1) * SEGMENT + self.rows[-1].size if self.rows else 0

    def needs(self, length: int) -> list[int]:
        """Classes of the rows to take before it can hold so many positions."""
        if length <= self.capacity:
            return []
        have = [row.size for row in self.rows]
        return [size for i, size in enumerate(layout(length)) if i >= len(have) or have[i] < size]

    def widen(self, pool: Pool, length: int) -> None:
        """Take those rows."""
        if length <= self.capacity:
            return
        for i, size in enumerate(layout(length)):
            if i >= len(self.rows):
                self.rows.append(pool.take(size))
            elif self.rows[i].size < size:
                self.rows[i] = pool.grow(self.rows[i], size, self.rows[i].size)
        self.measure()

    def free(self, pool: Pool) -> None:
        """Give up all rows, the last first: what lies deeper is reused less often, hence evicted earlier."""
        for row in reversed(self.rows):
            pool.drop(row)
        self.rows, self.done, self.keys, self.capacity = [], 0, [], 0

    def publish(self, pool: Pool, tokens: Tokens[int]) -> None:
        """Make the blocks findable that were completed since the last call."""
        while not self.sealed and (len(self.keys) + 1) * BLOCK <= self.done:
            block = self.block(len(self.keys), tokens)
            row, at = divmod(len(self.keys) * BLOCK, SEGMENT)
            pool.publish(block, self.rows[row], at // BLOCK)
            self.keys.append(block.key)

    def block(self, index: int, tokens: Tokens[int]) -> Block:
        """Block ``index``, all blocks before it being known."""
        start = index * BLOCK
        own = tuple(tokens[start : start + BLOCK])
        parent = self.keys[index - 1] if index else self.salt
        return Block(block_key(parent, own, self.course.cuts(start, start + BLOCK)), parent, own)

    def match(self, pool: Pool, tokens: Tokens[int]) -> list[Entry]:
        """Blocks of the pool that this empty context may start from; its last token is always left to compute.

        Sets ``done`` and ``keys`` accordingly. The entries cover ``done``, and may reach behind it.
        """
        found: list[Entry] = []
        while (len(found) + 1) * BLOCK <= len(tokens):
            entry = pool.find(block := self.block(len(found), tokens))
            if entry is None:
                break
            found.append(entry)
            self.keys.append(block.key)
        done = min(len(found) * BLOCK, len(tokens) - 1)
        self.done = done
        del self.keys[done // BLOCK :]
        return found[: -(-done // BLOCK)]

    def adopt(self, pool: Pool, found: Tokens[Entry], length: int, fits: Callable[[int], bool]) -> bool:
        """Share what :meth:`match` found and take rows for ``length`` positions; False, and nothing held, if they do not fit.

        ``fits`` is told how many segments are shared. What was found is held before rows are counted: a hit must not be
        evicted to make room for its own sequence.
        """
        per = SEGMENT // BLOCK
        whole = self._whole_segments(found)
        shared = [found[i * per].row for i in range(whole)]
        sources = {entry.row: None for entry in found[whole * per :]}
        for row in (*shared, *sources):
            pool.hold(row)
        fit = fits(whole)
        if fit:
            self.rows = [*shared, *(pool.take(size) for size in layout(length)[whole:])]
            for index, entry in enumerate(found[whole * per :], whole * per):
                row, at = divmod(index * BLOCK, SEGMENT)
                pool.copy(entry.row, entry.at * BLOCK, self.rows[row], at, BLOCK)
            self.measure()
        for row in (*sources, *(() if fit else shared)):
            pool.drop(row)
        return fit

    def _whole_segments(self, found: Tokens[Entry]) -> int:
        """Leading segments that lie in one row each and are matched to the end: these are shared, others are copied."""
        per, count = SEGMENT // BLOCK, 0
        for start in range(0, self.done // SEGMENT * per, per):
            part = found[start : start + per]
            if any(entry.row is not part[0].row or entry.at != at for at, entry in enumerate(part)):
                break
            count += 1
        return count

    def fork(self, pool: Pool, tail: list[Row], course: Course) -> Context:
        """A second context with the same KV: full segments shared, the rest copied into ``tail``."""
        full = self.done // SEGMENT
        shared = self.rows[:full]
        for row in shared:
            pool.hold(row)
        if self.done % SEGMENT:
            pool.copy(self.rows[full], 0, tail[0], 0, self.done % SEGMENT)
        rows, keys = [*shared, *tail], list(self.keys)
        forked = Context(self.salt, course, rows, self.done, keys, self.sealed, self.stretch)
        forked.measure()
        return forked


def block_key(parent: bytes, tokens: Tokens[int], cuts: Tokens[int]) -> bytes:
    """Key of a block: a strong hash, so that no prompt can be made to collide with another."""
    digest = hashlib.blake2b(parent, digest_size=16)
    digest.update(array("q", tokens).tobytes())
    digest.update(array("q", cuts).tobytes())
    return digest.digest()
