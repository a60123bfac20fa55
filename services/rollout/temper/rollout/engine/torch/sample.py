"""Drawing one token per row from logits, with a random number that belongs to the sample alone.

The uniform of a draw is a hash of ``(seed, sample_index, position)``: no generator state exists, so batch composition,
preemption and restarts cannot change a sample. The draw inverts the cumulative distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from temper.rollout.engine.base import Sampling
from temper.rollout.engine.stream import uniforms


@dataclass(frozen=True, slots=True)
class Draws:
    """Result of a step, per row."""

    tokens: list[int]
    """Sampled ids."""
    raw: list[float]
    """Log softmax of unscaled logits."""
    processed: list[float]
    """Log probability under the sampled distribution."""
    surviving: list[float]
    """Log of the mass truncation left."""


def is_plain(sampling: Sampling) -> bool:
    """Whether the sampled distribution is the plain softmax."""
    return (
        sampling.temperature == 1.0
        and sampling.top_k == 0
        and sampling.top_p >= 1.0
        and sampling.min_p == 0.0
    )


def draw(
    logits: Tensor, samplings: Sequence[Sampling], keys: Sequence[int], positions: Sequence[int]
) -> Draws:
    """Draw from logits ``[rows, vocab]``; ``keys`` are the rows' stream keys, ``positions`` those of the new tokens."""
    uniform = torch.from_numpy(uniforms(np.array(keys, np.uint64), np.array(positions, np.uint64)))
    raw = torch.log_softmax(logits, dim=-1)
    if all(map(is_plain, samplings)):
        tokens = _invert(raw.exp(), uniform)
        raw_at = raw.gather(1, tokens)[:, 0].tolist()
        return Draws(tokens[:, 0].tolist(), raw_at, raw_at, [0.0] * len(raw_at))
    return _draw_processed(logits, raw, samplings, uniform)


def _draw_processed(logits: Tensor, raw: Tensor, samplings: Sequence[Sampling], uniform: Tensor) -> Draws:
    scaled = torch.log_softmax(logits / _column([s.temperature or 1.0 for s in samplings]), dim=-1)
    plain = torch.tensor([is_plain(s) for s in samplings])
    scaled[plain] = raw[plain]  # so that a plain row's numbers do not depend on its neighbours' options
    support = _support(scaled, samplings)
    probability = scaled.exp().masked_fill_(~support, 0.0)
    tokens = _invert(probability, uniform)
    greedy = torch.tensor([s.temperature == 0 for s in samplings])
    tokens[greedy] = logits[greedy].argmax(dim=-1, keepdim=True)
    surviving = probability.sum(dim=-1, dtype=torch.float64).log().to(torch.float32)
    surviving[support.all(dim=-1) | greedy] = 0.0
    processed = scaled.gather(1, tokens)[:, 0] - surviving
    processed[greedy] = 0.0  # the limit of a vanishing temperature: all mass on one token
    return Draws(
        tokens[:, 0].tolist(), raw.gather(1, tokens)[:, 0].tolist(), processed.tolist(), surviving.tolist()
    )


def _support(scaled: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """Bool ``[rows, vocab]``: what top-k, then top-p, then min-p leave. The most likely token always stays."""
    rows, vocab = scaled.shape
    rank = torch.arange(vocab)
    ranked, order = scaled.exp().sort(dim=-1, descending=True, stable=True)
    top_k = _column([s.top_k or vocab for s in samplings])
    mass = ranked.double().masked_fill_(rank >= top_k, 0.0)
    before = (mass.cumsum(dim=-1) - mass) / mass.sum(dim=-1, keepdim=True)
    top_p = _column(
        [s.top_p if s.top_p < 1.0 else 2.0 for s in samplings]
    )  # 2: rounding must not cut a full support
    min_p = _column([s.min_p for s in samplings])
    kept = (rank < top_k) & (before < top_p) & (ranked >= min_p * ranked[:, :1])
    return torch.zeros(rows, vocab, dtype=torch.bool).scatter_(1, order, kept)


def _column(values: Sequence[float]) -> Tensor:
    return torch.tensor(values)[:, None]


def _invert(probability: Tensor, uniform: Tensor) -> Tensor:
    """First index whose cumulative mass exceeds ``uniform * total``: ``[rows, 1]``."""
    cumulative = probability.cumsum(dim=-1, dtype=torch.float64)
    target = uniform[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, target, right=True).clamp_(max=probability.shape[1] - 1)
