"""Sparse decode: the bound, the choice of pages, and attention over what was chosen."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from temper.rollout.engine.torch.architecture import read_architecture
from temper.rollout.engine.torch.arena import Row
from temper.rollout.engine.torch.kv import Cache
from temper.rollout.engine.torch.pages import (
    PAGE,
    PageIndex,
    Scratch,
    Sparse,
    SparseRow,
    bounds,
    likeliest,
    summarise,
)
from temper.rollout.engine.torch.sizes import SEGMENT, UNIT, layout

KV, GROUPS, HEAD, LAYERS = 2, 3, 16, 2
SMALL = Sparse(threshold=0, keep=0.25, sink=64, window=128)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31), pages=st.integers(1, 6), scale=st.sampled_from([1e-3, 1.0, 1e3]))
def test_the_bound_is_never_below_any_dot_product(seed: int, pages: int, scale: float):
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randn(KV, pages * PAGE, HEAD, generator=generator) * scale
    keys += torch.randn(KV, 1, HEAD, generator=generator)
    q = torch.randn(KV, GROUPS, HEAD, generator=generator)
    true = torch.bmm(q, keys.transpose(1, 2)).unflatten(2, (pages, PAGE)).amax(dim=-1)
    assert (bounds(q, summarise(keys)) >= true - 1e-5 * scale * HEAD).all()


def test_the_bound_is_reached_by_a_page_of_one_repeated_key():
    generator = torch.Generator().manual_seed(1)
    keys = torch.randn(KV, 3, 1, HEAD, generator=generator).expand(-1, -1, PAGE, -1).flatten(1, 2)
    q = torch.randn(KV, GROUPS, HEAD, generator=generator)
    true = torch.bmm(q, keys.transpose(1, 2))[:, :, ::PAGE]
    assert torch.allclose(bounds(q, summarise(keys)), true, atol=1e-5)


def test_a_page_that_one_head_needs_is_read_by_all():
    summary = summarise(torch.zeros(KV, 8 * PAGE, HEAD))
    q = torch.zeros(KV, GROUPS, HEAD)
    for head, group, page in ((0, 0, 5), (1, 2, 2)):  # two heads, each with one page that matters
        q[head, group, page] = 10.0
        summary[head, page, page] = 1.0
    assert likeliest(q, summary, 2, 1.0).tolist() == [2, 5]


@pytest.mark.parametrize(("pages", "count"), [(1, 1), (4, 1), (8, 2), (1000, 250)])
def test_a_share_of_the_pages_is_read_and_at_least_one(pages: int, count: int):
    assert SMALL.count(pages) == count
    assert Sparse(0, keep=1.0).count(pages) == pages


def test_short_contexts_are_read_whole():
    assert not Sparse(4096).pays(4095)
    assert Sparse(4096).pays(4096)
    assert not Sparse(0).pays(64 + 1024 + 63)  # nothing lies between sink and window


# ---------------------------------------------------------------- over a pool


def pool_of(length: int, seed: int = 0) -> tuple[Cache, list[Row], torch.Tensor]:
    """A context's rows, scattered, with random keys and values: also ``[layers, planes, tokens, d]``."""
    shape = read_architecture(
        {
            "model_type": "llama",
            "vocab_size": 8,
            "hidden_size": 32,
            "intermediate_size": 8,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": KV * GROUPS,
            "num_key_value_heads": KV,
            "head_dim": HEAD,
            "max_position_embeddings": 4096,
        }
    )
    sizes = layout(length)
    cache = Cache(shape, len(sizes))
    cache.tensor.fill_(torch.nan)  # what is read and was never written shows
    order = torch.randperm(len(sizes), generator=torch.Generator().manual_seed(seed)).tolist()
    rows = [Row(size, start=place * UNIT) for size, place in zip(sizes, order, strict=True)]
    kv = torch.randn(LAYERS, 2 * KV, length, HEAD, generator=torch.Generator().manual_seed(seed + 1))
    for i, row in enumerate(rows):
        part = kv[:, :, i * SEGMENT : (i + 1) * SEGMENT]
        cache._tokens(row, 0, part.shape[2]).copy_(part)
    return cache, rows, kv


def sparse_row(
    cache: Cache, rows: list[Row], start: int, width: int, config: Sparse, index: Any = None
) -> SparseRow:
    return SparseRow(index or PageIndex(config, KV), cache.tensor, rows, start, width)


def direct(q: torch.Tensor, kv: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """Plain attention of q ``[width, kv_heads, groups, d]`` in float64; seen ``[width, tokens]``."""
    k, v = kv[:KV].double(), kv[KV:].double()
    score = torch.einsum("wkgd,ktd->wkgt", q.double(), k) * HEAD**-0.5
    weights = score.masked_fill(~seen[:, None, None], float("-inf")).softmax(dim=-1)
    return torch.einsum("wkgt,ktd->wkgd", weights, v)


def attended(row: SparseRow, layer: int, q: torch.Tensor) -> torch.Tensor:
    folded = q.transpose(0, 1).reshape(1, KV, -1, HEAD)
    out = row.attend(layer, folded, HEAD**-0.5, Scratch())
    return out.reshape(KV, len(q), GROUPS, HEAD).transpose(0, 1)


@pytest.mark.parametrize("length", [513, 640, 700, 1000, 1024, 1537])
@pytest.mark.parametrize("width", [1, 4])
def test_reading_every_page_is_dense_attention(length: int, width: int):
    cache, rows, kv = pool_of(length)
    start = length - width
    q = torch.randn(width, KV, GROUPS, HEAD, generator=torch.Generator().manual_seed(9))
    seen = torch.arange(length) <= torch.arange(start, length)[:, None]
    row = sparse_row(cache, rows, start, width, Sparse(0, 1.0, 64, 128))
    for layer in range(LAYERS):
        assert (attended(row, layer, q) - direct(q, kv[layer], seen)).abs().max() < 1e-6


@pytest.mark.parametrize("length", [640, 1000, 1537])
@pytest.mark.parametrize("width", [1, 5])
def test_what_is_read_is_the_sink_the_window_and_the_pages_of_highest_bound(length: int, width: int):
    cache, rows, kv = pool_of(length, seed=4)
    start = length - width
    q = torch.randn(width, KV, GROUPS, HEAD, generator=torch.Generator().manual_seed(9))
    row = sparse_row(cache, rows, start, width, SMALL)
    for layer in range(LAYERS):
        seen = torch.zeros(width, length, dtype=torch.bool)
        for i in range(width):
            recent = (start + i - 128 + 1) // PAGE
            summary = summarise(kv[layer, :KV, PAGE : recent * PAGE])
            chosen = likeliest(q[i], summary, SMALL.count(recent - 1), HEAD**-0.5) + 1
            for page in (0, *chosen.tolist()):
                seen[i, page * PAGE : (page + 1) * PAGE] = True
            seen[i, recent * PAGE : start + i + 1] = True
        assert row.keys_read == seen.sum(dim=1).tolist()
        assert (attended(row, layer, q) - direct(q, kv[layer], seen)).abs().max() < 1e-6


def test_a_token_reads_the_same_alone_and_behind_a_draft():
    cache, rows, _ = pool_of(1300, seed=4)
    q = torch.randn(6, KV, GROUPS, HEAD, generator=torch.Generator().manual_seed(9))
    together = attended(sparse_row(cache, rows, 1294, 6, SMALL), 1, q)
    for i in range(6):
        alone = attended(sparse_row(cache, rows, 1294 + i, 1, SMALL), 1, q[i : i + 1])
        assert torch.equal(together[i : i + 1], alone)


def test_a_needle_is_found_wherever_it_lies():
    length = 1537
    for place in (70, 300, 900, 1300):
        cache, rows, kv = pool_of(length, seed=6)
        q = torch.randn(1, KV, 1, HEAD, generator=torch.Generator().manual_seed(9)).expand(-1, -1, GROUPS, -1)
        needle = 4 * q[0, :, 0]
        row, at = divmod(place, SEGMENT)
        cache._tokens(rows[row], at, 1)[:, :KV, 0] = needle
        kv[:, :KV, place] = needle
        dense = direct(q, kv[0], torch.ones(1, length, dtype=torch.bool))
        found = attended(sparse_row(cache, rows, length - 1, 1, SMALL), 0, q)
        assert (found - dense).norm() / dense.norm() < 0.01


def test_summaries_belong_to_rows_and_grow_with_the_sequence():
    cache, rows, kv = pool_of(1200)
    index = PageIndex(SMALL, KV)
    sparse_row(cache, rows, 600, 1, SMALL, index)
    made = [row.pages is not None for row in rows]
    assert made == [True, True, False, False, False]
    first = rows[0].pages
    sparse_row(cache, rows, 1150, 1, SMALL, index)
    assert rows[0].pages is first
    whole = index.cover(cache.tensor, rows, 4)
    assert torch.equal(whole, summarise(kv[:, :KV, :1024]))
    other = PageIndex(SMALL, KV)  # another sequence that shares the rows
    assert torch.equal(other.cover(cache.tensor, rows[:2], 2), whole[:, :, :8])
    assert rows[1].pages is not None


def test_a_context_that_was_computed_anew_is_summarised_anew():
    cache, rows, kv = pool_of(600)
    index = PageIndex(SMALL, KV)
    index.cover(cache.tensor, rows, 2)
    fresh = [Row(row.size, start=row.start) for row in rows]
    cache.tensor.mul_(2)
    assert torch.equal(index.cover(cache.tensor, fresh, 2), summarise(2 * kv[:, :KV, :512]))
