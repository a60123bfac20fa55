"""One drawn token, and what its numbers mean: the arithmetic that every engine's report follows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from temper.rollout.engine.base import Sampling


@dataclass(frozen=True, slots=True)
class Drawn:
    """One output token."""

    token: int
    """Its id."""
    raw: float
    """As ``Completion.logprobs_raw``."""
    processed: float
    """As ``Completion.logprobs``."""
    surviving: float
    """As ``Completion.log_surviving_mass``."""
    top: tuple[tuple[int, float], ...]
    """As ``Completion.top_logprobs``."""


def log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Log probabilities ``[vocab]``."""
    shifted = logits - logits.max()
    return shifted - math.log(np.exp(shifted).sum())


def likeliest(raw: NDArray[np.float64], count: int) -> tuple[tuple[int, float], ...]:
    """The ``count`` most likely tokens with their logprobs, the lower id first among equals."""
    order = np.argsort(-raw, kind="stable")[:count] if count else ()
    return tuple((int(token), float(raw[token])) for token in order)


def support(scaled: NDArray[np.float64], sampling: Sampling) -> NDArray[np.bool_]:
    """What truncation leaves of log probabilities ``[vocab]``: top-k, then top-p, then min-p.

    The most likely token always stays.
    """
    order = np.argsort(-scaled, kind="stable")
    ranked = np.exp(scaled[order])
    kept = np.arange(len(ranked)) < (sampling.top_k or len(ranked))
    mass = np.where(kept, ranked, 0.0)
    if sampling.top_p < 1:
        kept &= (mass.cumsum() - mass) / mass.sum() < sampling.top_p
    kept &= ranked >= sampling.min_p * ranked[0]
    left = np.zeros(len(ranked), np.bool_)
    left[order] = kept
    return left
