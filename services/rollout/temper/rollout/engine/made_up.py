"""The made-up policy of the fake engine: logits from a hash, draws by the rules of a real one, lengths with a tail."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from temper.rollout.engine.base import Request, Sampling
from temper.rollout.engine.stream import mix, stream_key, uniforms

_SHARPNESS = 4.0  # spread of the logits: enough that a few tokens carry most of the mass


@dataclass(frozen=True, slots=True)
class Lengths:
    """Log-normal output lengths, drawn once per (seed, sample index)."""

    median: float
    """Tokens."""
    sigma: float
    """Of the logarithm; 0 gives equal lengths."""

    def draw(self, request: Request) -> int:
        """Length of one request's output; the first two uniforms of a side stream give one Gaussian (Box-Muller)."""
        key = np.full(2, mix(stream_key(request.seed, request.sample_index)), np.uint64)
        first, second = uniforms(key, np.arange(2, dtype=np.uint64))
        gauss = math.sqrt(-2 * math.log(1 - first)) * math.cos(2 * math.pi * second)
        return max(1, round(self.median * math.exp(self.sigma * gauss)))


def made_up_logits(tokens: Sequence[int], fingerprint: int, vocab: int) -> NDArray[np.float64]:
    """Made-up logits ``[vocab]``: a function of the last 8 tokens, the length and the weights."""
    key = fingerprint
    for token in (len(tokens), *tokens[-8:]):
        key = mix(key ^ token)
    return _SHARPNESS * uniforms(np.full(vocab, key, np.uint64), np.arange(vocab, dtype=np.uint64))


def draw(
    logits: NDArray[np.float64], request: Request, position: int, forced: int | None
) -> tuple[int, float, float, float]:
    """One token with raw, processed and surviving logprobs. ``forced``: this token, or (-1) none of the stop tokens."""
    sampling = request.sampling
    raw = _log_softmax(logits)
    if sampling.temperature == 0 and forced is None:
        token = int(logits.argmax())
        return token, float(raw[token]), 0.0, 0.0
    scaled = _log_softmax(logits / (sampling.temperature or 1.0))
    mass = np.where(_support(scaled, sampling), np.exp(scaled), 0.0)
    surviving = math.log(mass.sum()) if mass.min() == 0 else 0.0
    if forced == -1:
        mass[list(sampling.stop_token_ids)] = 0.0
    key = np.array([stream_key(request.seed, request.sample_index)], np.uint64)
    uniform = uniforms(key, np.array([position], np.uint64))[0]
    cumulative = mass.cumsum()
    token = int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))
    token = forced if forced is not None and forced >= 0 else min(token, len(mass) - 1)
    return token, float(raw[token]), float(scaled[token]) - surviving, surviving


def _support(scaled: NDArray[np.float64], sampling: Sampling) -> NDArray[np.bool_]:
    """Top-k, then top-p, then min-p; the most likely token always stays."""
    order = np.argsort(-scaled, kind="stable")
    ranked = np.exp(scaled[order])
    kept = np.arange(len(ranked)) < (sampling.top_k or len(ranked))
    mass = np.where(kept, ranked, 0.0)
    if sampling.top_p < 1:
        kept &= (mass.cumsum() - mass) / mass.sum() < sampling.top_p
    kept &= ranked >= sampling.min_p * ranked[0]
    support = np.zeros(len(ranked), np.bool_)
    support[order] = kept
    return support


def _log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted = logits - logits.max()
    return shifted - math.log(np.exp(shifted).sum())
