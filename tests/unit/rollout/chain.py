"""A model whose KV can be checked: the number of a token hashes the one before it, the token and the version.

It reads the number before from the pool, where the schedule says it lies. So a row that was moved, shared, evicted or
preempted wrongly changes the outputs, and the outputs of every request follow from its prompt alone (:func:`expected`).
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from temper.rollout.engine.base import Request, Sampling, SwapPolicy
from temper.rollout.engine.torch.architecture import Architecture, RopeConfig
from temper.rollout.engine.torch.feed import Feed
from temper.rollout.engine.torch.loop import Loop
from temper.rollout.engine.torch.roster import Limits
from temper.rollout.engine.torch.sizes import SEGMENT

VOCAB, PRIME = 50, 65_521  # numbers stay exact in fp32

SHAPE = Architecture(
    vocab=VOCAB,
    layers=1,
    width=2,
    heads=1,
    kv_heads=1,
    head_dim=1,
    hidden=2,
    norm_eps=1e-6,
    qkv_bias=False,
    output_bias=False,
    mlp_bias=False,
    qk_norm=False,
    tied=False,
    max_context=2000,
    rope=RopeConfig(10_000.0, "default"),
    windows=(0,),
)


def follow(before: int, token: int, version: int) -> int:
    return (before * 31 + token * 17 + version * 101 + 7) % PRIME


def expected(tokens: Sequence[int], count: int, version: int) -> list[int]:
    """Greedy output of a context computed under one version."""
    number, out = 0, []
    for token in tokens:
        number = follow(number, token, version)
    for _ in range(count):
        out.append(number % VOCAB)
        number = follow(number, out[-1], version)
    return out


class ChainModel:
    """Stands where :class:`Model` does."""

    def __init__(self) -> None:
        self.shape = SHAPE
        self.rotary = SimpleNamespace(fixed=True)
        self.batch_invariant = True
        self.rows = 0  # tokens of the largest step

    def forward(self, weights: Any, kv: Tensor, feeds: Sequence[Feed]) -> Tensor:
        memory = kv[0].view(-1)
        logits: list[int] = []
        self.rows = max(self.rows, sum(len(feed.tokens) for feed in feeds))

        def place(feed: Feed, at: int) -> int:
            row = feed.rows[at // SEGMENT]
            assert 0 <= at % SEGMENT < row.size
            return row.start * 2 + at % SEGMENT

        for feed in feeds:
            numbers = []
            for at, token in enumerate(feed.tokens, feed.start):
                before = int(memory[place(feed, at - 1)]) if at else 0
                numbers.append(follow(before, token, weights.version))
                memory[place(feed, at)] = numbers[-1]
            logits += [number % VOCAB for number in numbers[len(numbers) - feed.logits :]]
        return torch.nn.functional.one_hot(torch.tensor(logits, dtype=torch.long), VOCAB).float() * 9


def chain_loop(
    *, units: int, slots: int = 8, prefill: int = 256, exact: bool = True, context: int = 600
) -> Loop:
    """A loop over the chain model, serving version 1."""
    loop = Loop(ChainModel(), Limits(slots, prefill, context, exact), units)  # pyright: ignore[reportArgumentType] - a stand-in
    loop.swap(version(1), SwapPolicy.KEEP)
    return loop


def version(number: int) -> Any:
    """Weights of the chain model."""
    return SimpleNamespace(version=number)


def greedy(name: str, tokens: Sequence[int], count: int, **more: Any) -> Request:
    """A request that takes the likeliest token."""
    return Request(name, tuple(tokens), Sampling(count, temperature=0.0), 0, 0, **more)
