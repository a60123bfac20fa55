"""Decode rows of one query and one row of the pool: nearly all there are when contexts are short, laid with little work.

Rows of one class that lie together are one call on a view. Sequences that wait for a tool, or whose prompt is still computed,
leave gaps; a small one is attended for nothing. The width of a call is the rows' class: a function of the sequence's own length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from temper.rollout.engine.torch.architecture import Architecture
from temper.rollout.engine.torch.feed import Feed
from temper.rollout.engine.torch.merge import as_bias, attend, visible
from temper.rollout.engine.torch.sizes import SEGMENT

_GAP = (
    3  # rows that are attended for nothing rather than split a call; a call costs as much as a few short rows
)


@dataclass(slots=True)
class _Run:
    """Neighbouring rows of one class."""

    start: int
    """First slot."""
    size: int
    """Class."""
    first: int
    """Place of its first row among those of all runs."""
    feed: int
    """First feed."""
    feeds: int = 0
    """How many."""
    rows: int = 0
    """With gaps."""
    kept: Tensor | None = None
    """Rows that are a feed's; None: all."""
    views: Sequence[tuple[Tensor, Tensor]] = ()
    """Keys and values of each layer, ``[rows, kv_heads, size, d]``."""


class Lone:
    """Such rows of one step, in pool order. Laid once, run for every layer."""

    def __init__(
        self, shape: Architecture, kv: Tensor, feeds: Sequence[Feed], windows: set[int], sink: int
    ) -> None:
        self.count = len(feeds)
        self._heads = (shape.kv_heads, shape.heads // shape.kv_heads, shape.head_dim)
        self._scale = shape.head_dim**-0.5
        owner = self._find_runs(feeds)
        for run in self._runs:
            run.views = _views(kv, run.start, run.rows, run.size, shape)
            if run.rows != run.feeds:
                rows = owner[run.first : run.first + run.rows]
                run.kept = torch.tensor([row for row, feed in enumerate(rows) if feed >= 0])
        at = torch.tensor([feeds[feed].start if feed >= 0 else 0 for feed in owner])
        gaps = len(owner) > len(feeds)
        self._queries = torch.tensor([max(0, feed) for feed in owner]) if gaps else None
        self._biases = {window: self._cut(_table(window, sink).index_select(0, at)) for window in windows}

    def _find_runs(self, feeds: Sequence[Feed]) -> list[int]:
        """Fill ``_runs``; returns the feed of each row, -1 in a gap."""
        self._runs: list[_Run] = []
        owner: list[int] = []
        size, expected = 0, 0
        for number, feed in enumerate(feeds):
            row = feed.rows[0]
            missing, rest = divmod(row.start - expected, row.size)
            if row.size != size or rest or missing > _GAP:
                self._end_run(owner, number)
                size = row.size
                self._runs.append(_Run(row.start, size, len(owner), number))
            elif missing:
                owner += [-1] * missing
            owner.append(number)
            expected = row.start + size
        self._end_run(owner, len(feeds))
        return owner

    def _end_run(self, owner: list[int], number: int) -> None:
        if self._runs:
            run = self._runs[-1]
            run.feeds, run.rows = number - run.feed, len(owner) - run.first

    def _cut(self, bias: Tensor) -> list[Tensor]:
        """Each run's part of a mask ``[rows, 256]``."""
        return [bias[run.first : run.first + run.rows, None, None, : run.size] for run in self._runs]

    def attend(self, layer: int, window: int, q: Tensor, out: Tensor) -> None:
        """q ``[feeds, heads * d]``, of any stride; out ``[feeds, heads * d]``."""
        q = (q if self._queries is None else q.index_select(0, self._queries)).unflatten(1, self._heads)
        out = out.view(-1, *self._heads)
        for run, bias in zip(self._runs, self._biases[window], strict=True):
            k, v = run.views[layer]
            result, _ = attend(q[run.first : run.first + run.rows], k, v, bias, self._scale)
            if run.kept is not None:
                result = result.index_select(0, run.kept)
            out[run.feed : run.feed + run.feeds].copy_(result)


def _views(kv: Tensor, start: int, rows: int, size: int, shape: Architecture) -> list[tuple[Tensor, Tensor]]:
    """Keys and values ``[rows, kv_heads, size, d]`` of neighbouring rows of one class, for each layer."""
    (plane, slot, _), head, kv_heads = kv.stride(), shape.head_dim, shape.kv_heads
    sizes = (len(kv), rows, kv_heads, size, head)
    steps = (plane, size * slot, size * head, head, 1)
    k = kv.as_strided(sizes, steps, start * slot)
    v = kv.as_strided(sizes, steps, start * slot + kv_heads * size * head)
    return list(zip(k.unbind(), v.unbind(), strict=True))


@lru_cache(maxsize=64)
def _table(window: int, sink: int) -> Tensor:
    """Mask ``[256, 256]`` of all first segments: what a query at each position sees."""
    places = torch.arange(SEGMENT)
    return as_bias(visible(places, places, window, sink))
