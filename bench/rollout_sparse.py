"""Sparse decode against dense decode, one sequence of 64k tokens.

Attention of one decode step over all layers, laying it out included, on a pool filled with random keys and values: 8 query
and 2 key heads of 64, four layers, a sixteenth of the pages beside sink and window. In CPU time of this process, one thread,
in turns A B A B; the ratio is the median over turns. Random keys are the hardest case for time: the chosen pages lie
scattered. What it costs in quality depends on the policy and is not measured here; that is why such logprobs are marked.

    python -m bench.rollout_sparse              also prints what share of a whole decode step is left, linear layers included
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers
from safetensors.torch import save

from bench.result import report
from temper.rollout.engine.torch.architecture import Architecture, read_architecture
from temper.rollout.engine.torch.arena import Row
from temper.rollout.engine.torch.attention import Attention
from temper.rollout.engine.torch.blocks import Pool
from temper.rollout.engine.torch.feed import Feed
from temper.rollout.engine.torch.kv import Cache
from temper.rollout.engine.torch.model import Model
from temper.rollout.engine.torch.pages import PageIndex, Scratch, Sparse
from temper.rollout.engine.torch.sizes import UNIT, layout
from temper.rollout.engine.torch.weights import Weights, read_weights

FLOOR, GOOD = 8.0, 10.0
CONTEXT, KEEP = 65_536, 1 / 16
SHAPE: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": CONTEXT,
}


def make_weights() -> tuple[Architecture, Weights]:
    """Random weights; the seed is fixed."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SHAPE)
    model = transformers.LlamaForCausalLM(config)
    shape = read_architecture(config.to_dict())
    tensors = {name: value.contiguous() for name, value in model.state_dict().items()}
    return shape, read_weights(shape, (save(tensors),), 0)


def fill_pool(shape: Architecture) -> tuple[Cache, list[Row]]:
    """A context of random keys and values."""
    units = CONTEXT // UNIT + 4
    cache = Cache(shape, units)
    pool = Pool(units, cache)
    rows = [pool.take(size) for size in layout(CONTEXT)]
    for row in rows:
        cache.tensor[:, row.start : row.start + row.size].normal_()
    return cache, rows


def seconds(work: Callable[[], object]) -> float:
    """CPU time of one call."""
    begun = time.process_time()
    work()
    return time.process_time() - begun


class Bench:
    """Both ways to compute the last position, attention alone and the whole step."""

    def __init__(self) -> None:
        self.shape, self.weights = make_weights()
        self.cache, rows = fill_pool(self.shape)
        self.model = Model(self.shape, batch_invariant=False)
        self.scratch = Scratch()
        index = PageIndex(Sparse(threshold=1, keep=KEEP), self.shape.kv_heads)
        self.dense = Feed([1], CONTEXT - 1, rows, 1, decode=True)
        self.sparse = Feed([1], CONTEXT - 1, rows, 1, decode=True, pages=index)
        self.qkv = torch.randn(1, self.shape.heads + 2 * self.shape.kv_heads, self.shape.head_dim)
        self.out = torch.empty(1, self.shape.heads * self.shape.head_dim)

    def attend(self, feed: Feed) -> None:
        """Attention of all layers."""
        laid = Attention(self.shape, self.cache.tensor, [feed], cascade=False, scratch=self.scratch)
        for layer in range(self.shape.layers):
            laid(layer, self.qkv, self.out)

    def step(self, feed: Feed) -> None:
        """A whole forward."""
        self.model.forward(self.weights, self.cache.tensor, [feed])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=11, help="measured turns of each side")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    with torch.inference_mode():
        bench = Bench()
        pairs: dict[str, list[tuple[float, float]]] = {"attention": [], "step": []}
        for turn in range(arguments.turns + 1):
            for name, work in (("attention", bench.attend), ("step", bench.step)):
                pair = (
                    seconds(lambda work=work: work(bench.dense)),
                    seconds(lambda work=work: work(bench.sparse)),
                )
                if turn:  # the first turn makes the summaries of the pages
                    pairs[name].append(pair)
    ratios = {
        name: statistics.median(dense / sparse for dense, sparse in each) for name, each in pairs.items()
    }
    for name, each in pairs.items():
        dense, sparse = (statistics.median(column) * 1000 for column in zip(*each, strict=True))
        print(f"{name}: dense {dense:.1f} ms, sparse {sparse:.1f} ms of CPU, {ratios[name]:.1f} times")
    report(
        "rollout_sparse",
        ratios["attention"],
        floor=FLOOR,
        good=GOOD,
        load=load,
        whole_step=round(ratios["step"], 2),
        tokens=CONTEXT,
    )


if __name__ == "__main__":
    main()
