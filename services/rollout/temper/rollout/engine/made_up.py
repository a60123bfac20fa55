"""The made-up policy of the fake engine: logits from a hash, draws by the rules of a real one, lengths with a tail."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from temper.rollout.engine.base import Request, Sampling
from temper.rollout.engine.drawn import Drawn, likeliest, log_softmax, support
from temper.rollout.engine.stream import mix, stream_key, uniforms

_SHARPNESS = 4.0  # spread of the logits: enough that a few tokens carry most of the mass
_MEMORY = 8  # tokens of the context that the logits depend on, besides its length


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


def made_up_logits(tokens: Sequence[int], end: int, fingerprint: int, vocab: int) -> NDArray[np.float64]:
    """Made-up logits ``[vocab]`` after ``tokens[:end]``: a function of its last tokens, its length and the weights."""
    key = fingerprint
    for token in (end, *tokens[max(0, end - _MEMORY) : end]):
        key = mix(key ^ token)
    return _SHARPNESS * uniforms(np.full(vocab, key, np.uint64), np.arange(vocab, dtype=np.uint64))


def prompt_logprobs(
    tokens: Sequence[int], start: int, fingerprint: int, vocab: int
) -> tuple[float | None, ...]:
    """Raw logprob of each of ``tokens[start:]``; None for the first token of a sequence."""
    return tuple(
        float(log_softmax(made_up_logits(tokens, at, fingerprint, vocab))[tokens[at]]) if at else None
        for at in range(start, len(tokens))
    )


def draw(
    logits: NDArray[np.float64],
    request: Request,
    tokens: Sequence[int],
    outputs: int,
    forced: int | None = None,
) -> Drawn:
    """One token after ``tokens``, of which the last ``outputs`` are output already.

    ``forced``: this token, or (-1) none of the stop tokens.
    """
    sampling = request.sampling
    raw = log_softmax(logits)
    top = likeliest(raw, sampling.top_logprobs)
    adjusted = _adjust(logits, sampling, tokens, outputs)
    if sampling.temperature == 0 and forced is None:
        token = int(adjusted.argmax())
        return Drawn(token, float(raw[token]), 0.0, 0.0, top)
    scaled = log_softmax(adjusted / (sampling.temperature or 1.0))
    mass = np.where(support(scaled, sampling), np.exp(scaled), 0.0)
    surviving = math.log(mass.sum()) if mass.min() == 0 else 0.0
    if forced == -1:
        mass[list(sampling.stop_token_ids)] = 0.0
    key = np.array([stream_key(request.seed, request.sample_index)], np.uint64)
    uniform = uniforms(key, np.array([len(tokens)], np.uint64))[0]
    cumulative = mass.cumsum()
    token = int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))
    token = forced if forced is not None and forced >= 0 else min(token, len(mass) - 1)
    return Drawn(token, float(raw[token]), float(scaled[token]) - surviving, surviving, top)


def _adjust(
    logits: NDArray[np.float64], sampling: Sampling, tokens: Sequence[int], outputs: int
) -> NDArray[np.float64]:
    """Repetition penalty over the context, presence and frequency over the output, then the bias."""
    adjusted = logits.copy()
    if sampling.repetition_penalty != 1:
        seen = list(set(tokens))
        factor = np.where(adjusted[seen] > 0, 1 / sampling.repetition_penalty, sampling.repetition_penalty)
        adjusted[seen] *= factor
    if sampling.presence_penalty or sampling.frequency_penalty:
        counts = np.bincount(np.array(tokens[len(tokens) - outputs :], np.int64), minlength=len(adjusted))
        adjusted -= sampling.presence_penalty * (counts > 0) + sampling.frequency_penalty * counts
    for token, addend in sampling.logit_bias:
        adjusted[token] += addend
    return adjusted
