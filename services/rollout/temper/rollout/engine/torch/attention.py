"""Attention over views of the pool. Keys and values are copied for sparse decode (:mod:`.pages`) and short prompts (:mod:`.tiles`) only.

A query attends one *item* per segment of its context. Rows of one class that follow each other in the pool are one strided
view, so the items of many sequences are one call; a sequence with several items joins them by their log-sum-exp. The item's
width is its row's class: a function of the sequence's own length, hence the same numbers in any company.

A full segment that several sequences share may be attended by all of them in one call (*cascade*): their queries fold into
the query length, keys and values are read once. That changes the order of sums, so batch-invariant mode goes without it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import torch
from torch import Tensor

from temper.rollout.engine.torch.architecture import Architecture
from temper.rollout.engine.torch.feed import Feed, kind_of
from temper.rollout.engine.torch.items import Call, Sight, calls_of, items_of, lines_of
from temper.rollout.engine.torch.lone import Lone
from temper.rollout.engine.torch.merge import as_bias, attend, merge, visible
from temper.rollout.engine.torch.pages import Scratch, SparseRow
from temper.rollout.engine.torch.sizes import SEGMENT
from temper.rollout.engine.torch.tiles import Tiles

TILE = 32  # queries of a chunk behind a full segment, which is mostly long; divides every class of rows
_PARTS = 8  # partial results of a prefill chunk that are held at once


@dataclass(frozen=True, slots=True)
class _Batch:
    """Decode rows with equally many query tokens."""

    rows: slice
    """Of qkv."""
    feeds: int
    """How many."""
    width: int
    """Query tokens of each."""
    laid: dict[int, tuple[list[Call], Tensor | None]]
    """By the layer's window: calls, and the feed of each of their results; None: one per feed, in order."""
    sparse: SparseRow | None
    """For a lone feed that reads a part of its context in layers without a window."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Keys of one segment, as tiles of a prefill chunk see them."""

    start: int
    """First slot."""
    size: int
    """Class of the row."""
    keys: int
    """How many of its slots."""
    bias: Tensor | None
    """``[tiles, 1, TILE, keys]``; None: all are seen."""
    unseen: Tensor | None = None
    """Bool ``[tiles, 1, TILE]``: queries that see none of them."""


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A chunk of prefill behind a full segment: queries in tiles of fixed places, as in :mod:`.tiles`."""

    rows: slice
    """Of qkv."""
    offset: int
    """Queries of the first tile that belong to no row."""
    tiles: int
    """How many."""
    before: dict[int, list[_Part]]
    """Earlier segments, by the layer's window: seen by all tiles at once."""
    own: dict[int, list[_Part]]
    """The chunk's segment, by the layer's window: one part per tile."""


class Attention:
    """Attention of one forward: laid once, run for every layer. Feeds come in the order of :func:`.feed.pool_order`."""

    def __init__(
        self,
        shape: Architecture,
        kv: Tensor,
        feeds: Sequence[Feed],
        *,
        cascade: bool,
        sink: int = 0,
        scratch: Scratch | None = None,
    ) -> None:
        self._shape, self._kv, self._sink = shape, kv, sink
        self._scratch = scratch or Scratch()
        self._scale = shape.head_dim**-0.5
        self._windows = shape.windows
        windows = set(shape.windows)
        self._lines = lines_of(feeds, 2 * shape.kv_heads)
        self._memory = kv.view(len(kv), -1, shape.head_dim).unbind()
        lone, others, first, later = _by_kind(feeds)
        self._lone = Lone(shape, kv, lone, windows, sink) if lone else None
        self._batches = self._lay_decodes(others, len(lone), cascade=cascade)
        row = len(lone) + sum(len(feed.tokens) for feed in others)
        self._tiles = Tiles(shape, kv, first, row, windows, sink) if first else None
        self._chunks: list[_Chunk] = []
        row += sum(len(feed.tokens) for feed in first)
        for feed in later:
            self._chunks.append(self._lay_chunk(feed, row))
            row += len(feed.tokens)

    def __call__(self, layer: int, qkv: Tensor, out: Tensor) -> None:
        """Write keys and values, then attend: qkv ``[rows, heads + 2 kv_heads, d]``, out ``[rows, heads * d]``."""
        shape = self._shape
        new = qkv[:, shape.heads :].reshape(-1, shape.head_dim)
        self._memory[layer].index_copy_(0, self._lines, new)
        window = self._windows[layer]
        q = qkv[:, : shape.heads]
        if self._lone is not None:
            count = self._lone.count
            self._lone.attend(layer, window, q[:count].flatten(1), out[:count])
        for batch in self._batches:
            self._decode(layer, batch, window, q[batch.rows], out[batch.rows])
        if self._tiles is not None:
            self._tiles.attend(layer, window, q.flatten(1), out[self._tiles.rows])
        for chunk in self._chunks:
            self._prefill(layer, chunk, window, q[chunk.rows], out[chunk.rows])

    def _lay_decodes(self, decodes: Sequence[Feed], row: int, *, cascade: bool) -> list[_Batch]:
        batches: list[_Batch] = []
        for members in _alike(decodes):
            width, index = len(members[0].tokens), members[0].pages
            at = [feed.start for feed in members]
            laid: dict[int, tuple[list[Call], Tensor | None]] = {}
            for window in set(self._windows) - ({0} if index is not None else set()):
                sight = Sight(at, width, window, self._sink)
                laid[window] = calls_of(items_of(members, sight), sight, self._groups, cascade=cascade)
            span = slice(row, row + width * len(members))
            sparse = (
                None
                if index is None
                else SparseRow(index, self._kv, members[0].rows, members[0].start, width)
            )
            batches.append(_Batch(span, len(members), width, laid, sparse))
            row = span.stop
        return batches

    @property
    def _groups(self) -> int:
        return self._shape.heads // self._shape.kv_heads

    def _decode(self, layer: int, batch: _Batch, window: int, q: Tensor, out: Tensor) -> None:
        """Decode rows: query tokens and the query heads of a kv head fold into the query length."""
        shape, width, groups = self._shape, batch.width, self._groups
        if width == 1:
            q = q.view(batch.feeds, shape.kv_heads, groups, shape.head_dim)
            target = out.view(batch.feeds, shape.kv_heads, groups, shape.head_dim)
        else:
            q = (
                q.view(batch.feeds, width, shape.kv_heads, groups, shape.head_dim)
                .transpose(1, 2)
                .flatten(2, 3)
            )
            target = out.view(batch.feeds, width, shape.kv_heads, groups, shape.head_dim).transpose(1, 2)
        if batch.sparse is not None and not window:
            results = [(batch.sparse.attend(layer, q, self._scale, self._scratch), q)]
        else:
            calls, owner = batch.laid[window]
            results = [self._call(layer, call, q) for call in calls]
            if owner is not None:
                results = [self._joined(results, owner, batch.feeds)]
        row = 0
        for outs, _ in results:  # one per feed and in order
            span = target[row : row + len(outs)]
            span.copy_(outs.view_as(span) if width == 1 else outs.unflatten(2, (width, groups)))
            row += len(outs)

    @staticmethod
    def _joined(results: list[tuple[Tensor, Tensor]], owner: Tensor, feeds: int) -> tuple[Tensor, Tensor]:
        outs, lses = (torch.cat(parts) for parts in zip(*results, strict=True))
        return merge(outs, lses, owner, feeds)

    def _call(self, layer: int, call: Call, q: Tensor) -> tuple[Tensor, Tensor]:
        """Results ``[items, kv_heads, fold, d]`` and their log-sum-exp ``[items, kv_heads, fold]``."""
        if not call.views:
            call.views = self._every_layer(call)
        k, v = call.views[layer]
        if call.shared:
            return self._cascade(call, q, k, v)
        outs, lses = attend(q[call.index], k, v, call.bias, self._scale)
        if call.unseen is not None:
            lses = lses.masked_fill(call.unseen, float("-inf"))
        if call.kept is not None:
            outs, lses = outs[call.kept], lses[call.kept]
        return outs, lses

    def _cascade(self, call: Call, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """All sharers of the rows at once: their queries lie side by side."""
        shape, fold = self._shape, q.shape[2]
        mine = q[call.index].transpose(0, 1).reshape(1, shape.kv_heads, -1, shape.head_dim)
        outs, lses = attend(mine.expand(call.rows, -1, -1, -1), k, v, None, self._scale)
        outs = outs.reshape(call.rows, shape.kv_heads, call.shared, fold, shape.head_dim).transpose(1, 2)
        lses = lses.reshape(call.rows, shape.kv_heads, call.shared, fold).transpose(1, 2)
        return outs.flatten(0, 1), lses.flatten(0, 1)

    def _lay_chunk(self, feed: Feed, row: int) -> _Chunk:
        stop = feed.start + len(feed.tokens)
        first, end = feed.start // TILE * TILE, -(-stop // TILE) * TILE
        before = {window: _before(feed, first, end, window, self._sink) for window in set(self._windows)}
        own = {window: _own(feed, first, end, window, self._sink) for window in set(self._windows)}
        span = slice(row, row + len(feed.tokens))
        return _Chunk(span, feed.start - first, (end - first) // TILE, before, own)

    def _prefill(self, layer: int, chunk: _Chunk, window: int, q: Tensor, out: Tensor) -> None:
        """A chunk of prefill: q ``[queries, heads, d]``, out ``[queries, heads * d]``."""
        heads, width = self._shape.heads, self._shape.head_dim
        mine = slice(chunk.offset, chunk.offset + len(q))
        if len(q) < chunk.tiles * TILE:
            padded = q.new_zeros(chunk.tiles * TILE, heads, width)
            padded[mine] = q
            q = padded
        tiles = q.view(chunk.tiles, TILE, heads, width).transpose(1, 2)
        alone = [self._part(layer, part, tiles[i : i + 1]) for i, part in enumerate(chunk.own[window])]
        outs, lses = (torch.cat(each) for each in zip(*alone, strict=True))
        joined = self._fold(
            [*(self._part(layer, part, tiles) for part in chunk.before[window]), (outs, lses)]
        )
        out.view(-1, heads, width).copy_(joined.transpose(1, 2).reshape(-1, heads, width)[mine])

    def _part(self, layer: int, part: _Part, tiles: Tensor) -> tuple[Tensor, Tensor]:
        """Results of tiles ``[n, heads, TILE, d]`` over one part."""
        k, v = self._views(layer, part.start, 1, part.size, part.keys)
        if len(tiles) > 1:
            k, v = k.expand(len(tiles), -1, -1, -1), v.expand(len(tiles), -1, -1, -1)
        outs, lses = attend(tiles, k, v, part.bias, self._scale)
        return outs, lses if part.unseen is None else lses.masked_fill(part.unseen, float("-inf"))

    def _fold(self, parts: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Join parts of the same queries, a few at a time."""
        while len(parts) > 1:
            outs, lses = (torch.stack(each) for each in zip(*parts[:_PARTS], strict=True))
            joined, lse = merge(outs, lses, torch.zeros(len(outs), dtype=torch.long), 1)
            parts = [(joined[0], lse[0]), *parts[_PARTS:]]
        return parts[0][0]

    def _every_layer(self, call: Call) -> list[tuple[Tensor, Tensor]]:
        """:meth:`_views` of a call, for all layers."""
        (plane, slot, _), head, kv_heads = self._kv.stride(), self._shape.head_dim, self._shape.kv_heads
        size = call.size
        shape = (len(self._kv), call.rows, kv_heads, size, head)
        steps = (plane, size * slot, size * head, head, 1)
        k = self._kv.as_strided(shape, steps, call.start * slot)
        v = self._kv.as_strided(shape, steps, call.start * slot + kv_heads * size * head)
        return list(zip(k.unbind(), v.unbind(), strict=True))

    def _views(self, layer: int, start: int, rows: int, size: int, keys: int) -> tuple[Tensor, Tensor]:
        """Keys and values ``[rows, kv_heads, keys, d]`` of neighbouring rows of one class."""
        slot, head, kv_heads = self._kv.stride(1), self._shape.head_dim, self._shape.kv_heads
        shape, steps = (rows, kv_heads, keys, head), (size * slot, size * head, head, 1)
        offset = layer * self._kv.stride(0) + start * slot
        k = self._kv.as_strided(shape, steps, offset)
        return k, self._kv.as_strided(shape, steps, offset + kv_heads * size * head)


def _by_kind(feeds: Sequence[Feed]) -> tuple[Sequence[Feed], ...]:
    """Lone decode rows, other ones, chunks inside first segments, later ones: in this order :func:`.feed.pool_order` has them."""
    edges = [0, *(bisect_right(feeds, kind, key=kind_of) for kind in range(3)), len(feeds)]
    return tuple(feeds[one:two] for one, two in pairwise(edges))


def _alike(decodes: Sequence[Feed]) -> Iterator[list[Feed]]:
    """Neighbours that are attended together: equally wide ones; a sparse one is alone."""
    for (_, sparse), group in groupby(decodes, key=lambda feed: (len(feed.tokens), feed.pages is not None)):
        if sparse:
            yield from ([feed] for feed in group)
        else:
            yield list(group)


def _before(feed: Feed, first: int, end: int, window: int, sink: int) -> list[_Part]:
    """Segments before the chunk's own, as queries at ``[first, end)`` see them."""
    parts: list[_Part] = []
    for segment in range(first // SEGMENT):
        base, row = segment * SEGMENT, feed.rows[segment]
        if not window:
            parts.append(_Part(row.start, row.size, SEGMENT, None))
        elif base + SEGMENT > first - window + 1 or base < sink:
            seen = visible(torch.arange(first, end), torch.arange(base, base + SEGMENT), window, sink)
            blind = ~seen.any(dim=1)
            seen[:, 0] |= blind
            bias = as_bias(seen).view(-1, 1, TILE, SEGMENT)
            parts.append(_Part(row.start, row.size, SEGMENT, bias, blind.view(-1, 1, TILE)))
    return parts


def _own(feed: Feed, first: int, end: int, window: int, sink: int) -> list[_Part]:
    """The chunk's own segment: each tile sees it up to the tile's end, so that nothing depends on the prompt's."""
    row = feed.rows[first // SEGMENT]
    base = first // SEGMENT * SEGMENT
    parts: list[_Part] = []
    for at in range(first, end, TILE):
        seen = visible(torch.arange(at, at + TILE), torch.arange(base, at + TILE), window, sink)
        parts.append(_Part(row.start, row.size, at + TILE - base, as_bias(seen)[None, None]))
    return parts
