"""Sparse decode: a query reads the pages of its context that can matter, not all of them.

A *page* is 64 tokens. Per page, layer and kv head its keys' minimum and maximum are kept (Quest, arXiv 2406.10774):
``sum_c max(q_c min_c, q_c max_c)`` bounds every dot product with a key of the page from above. All heads of a layer read one
set of pages, the likeliest by any head's bound: on CPUs a set per head costs more than it saves. The first ``sink`` tokens
and the last ``window`` are always read.

Summaries belong to full rows of the pool and are made when a sequence first needs them, behind its window; whoever shares the
row shares them. So they survive prefix reuse, chunked prefill and drafts, none of which touch a full row behind the window.
What is read is gathered into one piece of memory: a call per page would cost more than the copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from temper.rollout.engine.torch.arena import Row
from temper.rollout.engine.torch.merge import attend
from temper.rollout.engine.torch.sizes import SEGMENT

PAGE = 64  # tokens
_LINE = 32  # tokens that lie together in a row of any class, head by head
_PER_ROW = SEGMENT // PAGE
_HALVES = torch.arange(PAGE // _LINE)


@dataclass(frozen=True, slots=True)
class Sparse:
    """When to read a part of the context, and how much."""

    threshold: int
    """Contexts of fewer tokens are read whole."""
    keep: float = 1 / 16
    """Share of the pages between sink and window that are read."""
    sink: int = 64
    """First tokens, always read; a multiple of the page."""
    window: int = 1024
    """Last tokens, always read."""

    def pays(self, start: int) -> bool:
        """Whether a decode row at this position is sparse."""
        return start >= max(self.threshold, self.sink + self.window + PAGE)

    def count(self, pages: int) -> int:
        """How many of so many pages are read."""
        return min(pages, max(1, round(pages * self.keep)))


def summarise(keys: Tensor) -> Tensor:
    """Keys ``[..., kv_heads, tokens, d]``, whole pages, to ``[..., kv_heads, pages, 2 d]``: maximum, then minimum."""
    paged = keys.unflatten(-2, (-1, PAGE))
    return torch.cat([paged.amax(dim=-2), paged.amin(dim=-2)], dim=-1)


def bounds(q: Tensor, summary: Tensor) -> Tensor:
    """Upper bounds ``[kv_heads, queries, pages]`` of q ``[kv_heads, queries, d]`` times any key of a page.

    The maximum meets the positive part of q and the minimum the negative one, so both are one product.
    """
    return torch.bmm(torch.cat([q.clamp(min=0), q.clamp(max=0)], dim=-1), summary.transpose(1, 2))


def likeliest(q: Tensor, summary: Tensor, count: int, scale: float) -> Tensor:
    """The ``count`` pages that some query head would give most weight to, in order: ``[count]``."""
    score = bounds(q, summary).flatten(0, 1).mul_(scale)
    score -= score.logsumexp(dim=1, keepdim=True)  # heads differ in scale; their shares of weight compare
    return score.amax(dim=0).topk(count).indices.sort().values


class PageIndex:
    """Summaries of one sequence's pages, for all layers; grows with the sequence."""

    def __init__(self, config: Sparse, kv_heads: int) -> None:
        self.config, self.kv_heads = config, kv_heads
        self._rows: list[Row] = []
        self._summary: Tensor | None = None

    def cover(self, kv: Tensor, rows: Sequence[Row], count: int) -> Tensor:
        """Summaries ``[layers, kv_heads, pages, 2 d]`` of the first ``count`` rows, all of them full."""
        if any(one is not two for one, two in zip(self._rows, rows, strict=False)):
            self._rows, self._summary = [], None  # the context was computed anew
        fresh = rows[len(self._rows) : count]
        if fresh:
            parts = [_summary(kv, row, self.kv_heads) for row in fresh]
            parts = parts if self._summary is None else [self._summary, *parts]
            self._summary = torch.cat(parts, dim=2)
            self._rows += fresh
        assert self._summary is not None, "sparse decode begins behind a full row"
        return self._summary[:, :, : count * _PER_ROW]


def _summary(kv: Tensor, row: Row, kv_heads: int) -> Tensor:
    """``[layers, kv_heads, 4, 2 d]`` of a full row, made once and shared with it."""
    if not isinstance(row.pages, Tensor):
        lines = kv[:, row.start : row.start + SEGMENT].reshape(len(kv), 2 * kv_heads, SEGMENT, -1)
        keys = lines[:, :kv_heads]
        row.pages = summary = summarise(keys)
        return summary
    return row.pages


@dataclass(frozen=True, slots=True)
class _Sight:
    """What one query token may read."""

    keys: int
    """Tokens up to its own."""
    recent: int
    """First page of its window."""
    count: int
    """How many of the pages before are read."""
    late: Tensor
    """Lines of its window."""


class SparseRow:
    """One decode row of one forward, laid once and attended in every layer.

    When it verifies drafts, each of its tokens reads the pages that it would read if it were alone: so drafts change no
    output here either.
    """

    def __init__(self, index: PageIndex, kv: Tensor, rows: Sequence[Row], start: int, width: int) -> None:
        config, planes = index.config, 2 * index.kv_heads
        self._kv, self._planes = kv, planes
        self._head = kv.shape[2] // planes
        self._first = config.sink // PAGE
        self._sights = [self._sight(config, at) for at in range(start, start + width)]
        # All rows up to the last page that may be left out are full.
        last = self._sights[-1].recent
        self._summary = index.cover(kv, rows, -(-last // _PER_ROW))[:, :, self._first : last]
        self._early = torch.arange(self._first * 2)
        self._addresses = _addresses(rows, -(-(start + width) // _LINE), planes)

    def _sight(self, config: Sparse, at: int) -> _Sight:
        recent = (at - config.window + 1) // PAGE
        late = torch.arange(recent * 2, at // _LINE + 1)
        return _Sight(at + 1, recent, config.count(recent - self._first), late)

    @property
    def keys_read(self) -> list[int]:
        """Tokens that each layer reads, per query token."""
        return [sight.keys - (sight.recent - self._first - sight.count) * PAGE for sight in self._sights]

    def attend(self, layer: int, q: Tensor, scale: float, scratch: Scratch) -> Tensor:
        """q ``[1, kv_heads, tokens * groups, d]``, token by token; returns the same shape."""
        tokens = q.chunk(len(self._sights), dim=2)
        outs = [
            self._attend(layer, token, sight, read, scale, scratch)
            for token, sight, read in zip(tokens, self._sights, self.keys_read, strict=True)
        ]
        return outs[0] if len(outs) == 1 else torch.cat(outs, dim=2)

    def _attend(
        self, layer: int, q: Tensor, sight: _Sight, count: int, scale: float, scratch: Scratch
    ) -> Tensor:
        summary = self._summary[layer, :, : sight.recent - self._first]
        chosen = likeliest(q[0], summary, sight.count, scale) + self._first
        lines = torch.cat([self._early, (chosen[:, None] * 2 + _HALVES).flatten(), sight.late])
        at = self._addresses.index_select(1, lines).flatten()
        source = self._kv[layer].view(-1, _LINE * self._head)
        gathered = torch.index_select(source, 0, at, out=scratch.take(len(at), source.shape[1]))
        # What lies behind the token's own position in its line is cut off.
        k, v = gathered.view(1, self._planes, -1, self._head)[:, :, :count].chunk(2, dim=1)
        return attend(q, k, v, None, scale)[0]


class Scratch:
    """Memory that gathers write to; taking fresh pages from the system would cost more than the copy."""

    def __init__(self) -> None:
        self._memory = torch.empty(0)

    def take(self, rows: int, columns: int) -> Tensor:
        """``[rows, columns]``, undefined; valid until the next call."""
        if len(self._memory) < rows * columns:
            self._memory = torch.empty(rows * columns * 5 // 4)
        return self._memory[: rows * columns].view(rows, columns)


def _addresses(rows: Sequence[Row], lines: int, planes: int) -> Tensor:
    """Where each line of 32 tokens begins, per plane, in lines of the pool: ``[planes, lines]``."""
    per = SEGMENT // _LINE
    used = rows[: -(-lines // per)]
    starts = torch.tensor([row.start for row in used]).mul_(planes).div_(_LINE, rounding_mode="floor")
    sizes = torch.tensor([row.size // _LINE for row in used])
    number = torch.arange(lines)
    first = starts[number // per] + number % per
    return first + torch.arange(planes)[:, None] * sizes[number // per]
