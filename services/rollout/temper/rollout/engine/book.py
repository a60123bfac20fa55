"""The book of a KV pool without the KV: blocks, who uses them, and which of them a later request may share.

A block is found by its parent and its own tokens, compared in full; the root of a chain is a namespace such as
(weight version, tenant). Nothing is hashed to a number that could collide, and nothing crosses a namespace.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from temper.rollout.engine.base import Blocks

BLOCK = 16  # tokens


@dataclass(slots=True, eq=False)
class Block:
    """Some tokens' place in the pool."""

    serial: int
    """Never used twice, so that a chain cannot be continued under a parent that is gone."""
    users: int = 1
    """Sequences that hold it."""
    key: tuple[Hashable, tuple[int, ...]] | None = None
    """(parent's serial or the namespace, own tokens), once it may be shared."""


class Book:
    """``free + evictable + held == total``, always."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = total
        self._held = 0
        self._serials = itertools.count()
        self._shared: dict[tuple[Hashable, tuple[int, ...]], Block] = {}
        self._evictable: dict[Block, None] = {}  # oldest first; a chain is dropped leaf first, so leaves lead

    @property
    def available(self) -> int:
        """Blocks that can be had without taking them from a sequence."""
        return self._free + len(self._evictable)

    def match(self, namespace: Hashable, tokens: Sequence[int], most: int) -> list[Block]:
        """Hold the shared blocks that begin ``tokens``, at most ``most`` of them."""
        found: list[Block] = []
        parent: Hashable = namespace
        for start in range(0, most * BLOCK, BLOCK):
            block = self._shared.get((parent, tuple(tokens[start : start + BLOCK])))
            if block is None:
                break
            self._hold(block)
            found.append(block)
            parent = block.serial
        return found

    def take(self) -> Block:
        """An empty block; one that nobody uses is forgotten for it if need be."""
        if self._free:
            self._free -= 1
        else:
            oldest = next(iter(self._evictable))
            del self._evictable[oldest]
            self._unshare(oldest)
        self._held += 1
        return Block(next(self._serials))

    def publish(self, blocks: list[Block], index: int, namespace: Hashable, tokens: Sequence[int]) -> None:
        """Let ``blocks[index]``, now full of ``tokens``, be shared; an equal one that is shared already replaces it."""
        if blocks[index].key is not None:
            return
        key = (blocks[index - 1].serial if index else namespace, tuple(tokens))
        known = self._shared.get(key)
        if known is None:
            blocks[index].key = key
            self._shared[key] = blocks[index]
            return
        self._hold(known)
        self.drop([blocks[index]])
        blocks[index] = known

    def drop(self, blocks: Sequence[Block]) -> None:
        """Stop holding blocks, the leaf first."""
        for block in reversed(blocks):
            block.users -= 1
            if block.users:
                continue
            self._held -= 1
            if block.key is None:
                self._free += 1
            else:
                self._evictable[block] = None

    def forget(self) -> None:
        """Share nothing that is known now: the weights have changed."""
        for block in self._shared.values():
            block.key = None
        self._shared.clear()
        self._free += len(self._evictable)
        self._evictable.clear()

    def counts(self) -> Blocks:
        """The book."""
        return Blocks(self.total, self._free, len(self._evictable), self._held)

    def _hold(self, block: Block) -> None:
        if not block.users:
            del self._evictable[block]
            self._held += 1
        block.users += 1

    def _unshare(self, block: Block) -> None:
        assert block.key is not None, "only shared blocks are evictable"
        del self._shared[block.key]
        block.key = None
