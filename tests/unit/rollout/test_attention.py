"""Attention over rows of the pool, against softmax over the whole context."""

import math
from itertools import pairwise

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from temper.rollout.engine.torch.architecture import Architecture, RopeConfig
from temper.rollout.engine.torch.arena import Row
from temper.rollout.engine.torch.attention import Attention
from temper.rollout.engine.torch.blocks import Pool
from temper.rollout.engine.torch.feed import Feed, pool_order
from temper.rollout.engine.torch.kv import Cache
from temper.rollout.engine.torch.merge import attend, merge
from temper.rollout.engine.torch.sizes import SEGMENT, layout

HEADS, KV_HEADS, HEAD = 4, 2, 16


def shape_of(window: int = 0) -> Architecture:
    return Architecture(
        vocab=8,
        layers=2,
        width=64,
        heads=HEADS,
        kv_heads=KV_HEADS,
        head_dim=HEAD,
        hidden=8,
        norm_eps=1e-6,
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        qk_norm=False,
        tied=False,
        max_context=4096,
        rope=RopeConfig(10_000.0, "default"),
        windows=(0, window),
    )


class World:
    """Contexts in a pool, and their keys and values kept aside."""

    def __init__(self, window: int = 0, sink: int = 0) -> None:
        self.shape, self.window, self.sink = shape_of(window), window, sink
        self.cache = Cache(self.shape, 40)
        self.pool = Pool(40, self.cache)
        self.known: dict[int, Tensor] = {}
        self.generator = torch.Generator().manual_seed(0)

    def random(self, *size: int) -> Tensor:
        return torch.randn(*size, generator=self.generator)

    def context(
        self, length: int, shared: list[Row] | None = None, like: Tensor | None = None, more: int = 8
    ) -> list[Row]:
        """Rows of a context whose KV is there; ``shared`` full segments are another's, whose KV is ``like``;
        there is room for ``more`` tokens."""
        rows = list(shared or [])
        rows += [self.pool.take(size) for size in layout(length + more)[len(rows) :]]
        kv = self.random(2, length, 2 * KV_HEADS, HEAD)  # per layer
        if like is not None and shared:
            kv[:, : SEGMENT * len(shared)] = like[:, : SEGMENT * len(shared)]
        for layer in range(2):
            memory = self.cache.tensor[layer].view(-1, HEAD)
            for at in range(length):
                row = rows[at // SEGMENT]
                lines = row.start * 2 * KV_HEADS + torch.arange(2 * KV_HEADS) * row.size + at % SEGMENT
                memory[lines] = kv[layer, at]
        self.known[id(rows)] = kv
        return rows

    def run(self, feeds: list[Feed], *, cascade: bool = False) -> float:
        """Largest difference from the reference over both layers."""
        feeds = sorted(feeds, key=pool_order)
        attention = Attention(self.shape, self.cache.tensor, feeds, cascade=cascade, sink=self.sink)
        rows = sum(len(feed.tokens) for feed in feeds)
        worst = 0.0
        for layer, window in enumerate((0, self.window)):
            qkv = self.random(rows, HEADS + 2 * KV_HEADS, HEAD)
            out = torch.zeros(rows, HEADS * HEAD)
            attention(layer, qkv, out)
            row = 0
            for feed in feeds:
                span = slice(row, row + len(feed.tokens))
                expected = self.reference(layer, feed, qkv[span], window)
                worst = max(worst, float((out[span].double() - expected).abs().max()))
                row = span.stop
        return worst

    def reference(self, layer: int, feed: Feed, qkv: Tensor, window: int) -> Tensor:
        new = qkv[:, HEADS:].double()
        kv = torch.cat([self.known[id(feed.rows)][layer, : feed.start].double(), new])
        k = kv[:, :KV_HEADS].repeat_interleave(HEADS // KV_HEADS, dim=1)
        v = kv[:, KV_HEADS:].repeat_interleave(HEADS // KV_HEADS, dim=1)
        scores = torch.einsum("qhd,khd->hqk", qkv[:, :HEADS].double(), k) / math.sqrt(HEAD)
        reach = torch.arange(feed.start, len(kv))[:, None] - torch.arange(len(kv))
        seen = reach >= 0
        if window:
            seen &= (reach < window) | (torch.arange(len(kv)) < self.sink)
        weights = scores.masked_fill(~seen, float("-inf")).softmax(dim=-1)
        return torch.einsum("hqk,khd->qhd", weights, v).flatten(1)


def decode(rows: list[Row], start: int, width: int = 1) -> Feed:
    return Feed([0] * width, start, rows, width, decode=True)


LENGTHS = [1, 40, 63, 64, 65, 95, 128, 200, 255, 256, 257, 300, 511, 512, 700]


def test_decode_rows_of_all_lengths_in_one_step():
    world = World()
    contexts = [(world.context(length), length) for length in LENGTHS]
    assert world.run([decode(rows, length) for rows, length in contexts]) < 2e-6


@pytest.mark.parametrize("width", [2, 5])
def test_decode_rows_that_verify_drafts_across_the_edge_of_a_segment(width: int):
    world = World()
    contexts = [(world.context(length), length) for length in (3, 60, 253, 254, 255, 256, 510)]
    feeds = [decode(rows, length, width) for rows, length in contexts]
    lone = world.context(90)
    assert world.run([*feeds, decode(lone, 90)]) < 2e-6


@pytest.mark.parametrize(
    ("window", "sink"), [(1, 0), (20, 0), (64, 0), (256, 0), (300, 0), (40, 64), (300, 16)]
)
def test_windows_and_sinks(window: int, sink: int):
    world = World(window, sink)
    contexts = [(world.context(length), length) for length in LENGTHS]
    feeds = [decode(rows, length) for rows, length in contexts]
    spans = ((0, 100), (300, 512), (512, 600), (37, 41))
    chunks = [(world.context(start, more=stop - start), start, stop) for start, stop in spans]
    feeds += [Feed([0] * (stop - start), start, rows, 1, decode=False) for rows, start, stop in chunks]
    assert world.run(feeds) < 2e-6
    wide = [decode(rows, length, 3) for rows, length in contexts]
    assert world.run(wide) < 2e-6


@pytest.mark.parametrize(
    ("start", "stop"), [(0, 1), (0, 31), (0, 256), (5, 9), (31, 33), (256, 300), (700, 768)]
)
def test_chunks_of_prefill(start: int, stop: int):
    world = World()
    rows = world.context(start, more=stop - start)
    assert world.run([Feed([0] * (stop - start), start, rows, 1, decode=False)]) < 2e-6


@pytest.mark.parametrize("cascade", [True, False])
def test_a_shared_prefix_attended_together_or_one_by_one(cascade: bool):
    world = World()
    first = world.context(600)
    like = world.known[id(first)]
    members = [(first, 600)]
    for length in (530, 512, 700):
        for row in first[:2]:
            world.pool.hold(row)
        members.append((world.context(length, first[:2], like), length))
    lone = (world.context(300), 300)
    assert world.run([decode(rows, length) for rows, length in [*members, lone]], cascade=cascade) < 2e-6
    assert world.run([decode(rows, length, 2) for rows, length in members], cascade=cascade) < 2e-6


def test_gaps_in_the_pool_are_filled_and_wide_ones_split():
    world = World()
    rows = [world.context(50) for _ in range(24)]
    some = [0, 1, 3, 6, 7, 12, 23]
    assert world.run([decode(rows[i], 50) for i in some]) < 2e-6


@settings(max_examples=40, deadline=None)
@given(
    cuts=st.sets(st.integers(1, 199), max_size=12),
    seed=st.integers(0, 1000),
    spread=st.sampled_from([0.3, 1.0]),
)
def test_any_partition_of_the_keys_merges_to_the_whole(cuts: set[int], seed: int, spread: float):
    """Extents, cascade, sink and window, context parallelism: the same function, fp32, 2e-7."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(1, 2, n, 16, generator=generator) * spread for n in (3, 200, 200))
    whole, whole_lse = attend(q, k, v * 0.3, None, 0.25)
    edges = [0, *sorted(cuts), 200]
    parts = [attend(q, k[:, :, a:b], v[:, :, a:b] * 0.3, None, 0.25) for a, b in pairwise(edges)]
    outs, lses = (torch.stack(each) for each in zip(*parts, strict=True))
    joined, lse = merge(outs, lses, torch.zeros(len(parts), dtype=torch.long), 1)
    assert (joined[0] - whole).abs().max() <= 2e-7
    assert (lse[0] - whole_lse).abs().max() <= 1e-6


def test_merging_leaves_owners_apart_and_ignores_what_sees_nothing():
    outs = torch.tensor([[[1.0]], [[5.0]], [[3.0]], [[9.0]]])
    lses = torch.tensor([[0.0], [1.0], [0.0], [float("-inf")]])
    joined, lse = merge(outs, lses, torch.tensor([0, 1, 0, 1]), 2)
    assert joined.flatten().tolist() == [2.0, 5.0]
    assert lse.flatten().tolist() == pytest.approx([math.log(2), 1.0])
