"""Prefill of first segments: the tiles of all chunks of a step, side by side.

A *tile* is 16 queries at a fixed place; what it is multiplied with ends at a multiple of 32 keys, so that a token's numbers depend on
its position alone, whatever chunk it came in. Tiles with equally many keys are one call. Their keys and values lie in rows of any class, far
apart: here they are copied, for a few kilobytes take less time than the dozen operations of a call for each chunk.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from temper.rollout.engine.torch.architecture import Architecture
from temper.rollout.engine.torch.feed import Feed
from temper.rollout.engine.torch.merge import as_bias, attend, visible

TILE = 16  # queries; short, since most of what a turn adds is
_LINE = 32  # keys that lie together in a row of any class


@dataclass(frozen=True, slots=True)
class _Tile:
    """Queries of one chunk in one tile."""

    shift: int
    """Row of qkv that the tile's first position would have."""
    first: int
    """First row of qkv that belongs to the chunk; queries before it are filled up with this one."""
    last: int
    """Last one, as above."""
    start: int
    """First line of the chunk's row in the pool."""
    size: int
    """Lines of a plane of that row."""
    late: bool
    """Whether its queries are the last of its keys, not those before."""


class Tiles:
    """All tiles of a step. Laid once, run for every layer."""

    def __init__(
        self, shape: Architecture, kv: Tensor, feeds: Sequence[Feed], row: int, windows: set[int], sink: int
    ) -> None:
        """``feeds`` are chunks inside first segments, whose tokens are rows of qkv from ``row`` on."""
        self._shape, self._scale = shape, shape.head_dim**-0.5
        self.rows = slice(row, row + sum(len(feed.tokens) for feed in feeds))
        # A line is 32 keys or values of one head.
        self._memory = kv.view(len(kv), -1, _LINE * shape.head_dim).unbind()
        groups = _group(feeds, row, 2 * shape.kv_heads)
        self._sizes = [(len(groups[keys]), keys) for keys in groups]
        late = {keys: torch.tensor([int(tile.late) for tile in tiles]) for keys, tiles in groups.items()}
        self._biases = {
            window: [_biases(keys, window, sink).index_select(0, late[keys]) for keys in groups]
            for window in windows
        }
        every = [tile for tiles in groups.values() for tile in tiles]
        shift, first, last = torch.tensor(
            [(tile.shift, tile.first, tile.last) for tile in every]
        ).T.unsqueeze(-1)
        self._queries = (shift + torch.arange(TILE)).clamp_(first, last).flatten()
        self._lines = torch.cat([_lines(tiles, keys, shape.kv_heads) for keys, tiles in groups.items()])
        self._back = self._way_back(every)

    def _way_back(self, every: list[_Tile]) -> Tensor:
        """Place of each row of qkv among the tiles' queries."""
        back = [0] * (self.rows.stop - self.rows.start)
        for number, tile in enumerate(every):
            begin, end = max(tile.first, tile.shift), min(tile.last + 1, tile.shift + TILE)
            at = number * TILE - tile.shift
            back[begin - self.rows.start : end - self.rows.start] = range(begin + at, end + at)
        return torch.tensor(back)

    def attend(self, layer: int, window: int, q: Tensor, out: Tensor) -> None:
        """q ``[rows of the step, heads * d]``, of any stride; out ``[rows of the tiles, heads * d]``."""
        heads, kv_heads, head = self._shape.heads, self._shape.kv_heads, self._shape.head_dim
        queries = q.index_select(0, self._queries)
        memory = self._memory[layer].index_select(0, self._lines).view(-1, head)
        outs: list[Tensor] = []
        tile = line = 0
        for (count, keys), bias in zip(self._sizes, self._biases[window], strict=True):
            tiles = queries[tile * TILE : (tile + count) * TILE].view(count, TILE, heads, head)
            lines = 2 * count * kv_heads * keys
            k, v = memory[line : line + lines].view(2, count, kv_heads, keys, head).unbind()
            result, _ = attend(tiles.transpose(1, 2), k, v, bias, self._scale)
            outs.append(result.transpose(1, 2).reshape(-1, heads * head))
            tile, line = tile + count, line + lines
        torch.index_select(outs[0] if len(outs) == 1 else torch.cat(outs), 0, self._back, out=out)


def _group(feeds: Sequence[Feed], row: int, planes: int) -> dict[int, list[_Tile]]:
    """Tiles by their number of keys."""
    groups: dict[int, list[_Tile]] = defaultdict(list)
    for feed in feeds:
        count, memory = len(feed.tokens), feed.rows[0]
        for at in range(feed.start // TILE * TILE, feed.start + count, TILE):
            keys = -(-(at + TILE) // _LINE) * _LINE
            start, size = memory.start * planes // _LINE, memory.size // _LINE
            shift, last = row + at - feed.start, row + count - 1
            groups[keys].append(_Tile(shift, row, last, start, size, at + TILE == keys))
        row += count
    return groups


def _lines(tiles: list[_Tile], keys: int, kv_heads: int) -> Tensor:
    """Lines of the tiles' keys and values, ``[2, tiles, kv_heads, keys / 32]``, flat."""
    starts, sizes = torch.tensor([(tile.start, tile.size) for tile in tiles]).T.view(2, 1, -1, 1, 1)
    planes = torch.arange(2 * kv_heads).view(2, 1, kv_heads, 1)
    return (starts + planes * sizes + torch.arange(keys // _LINE)).flatten()


@lru_cache(maxsize=256)
def _biases(keys: int, window: int, sink: int) -> Tensor:
    """Masks ``[2, 1, TILE, keys]`` of the two tiles with so many keys, the earlier one first."""
    seen = visible(torch.arange(keys - _LINE, keys), torch.arange(keys), window, sink)
    return as_bias(seen).view(-1, 1, TILE, keys)
