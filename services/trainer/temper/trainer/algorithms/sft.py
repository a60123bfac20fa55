"""Supervised fine-tuning: cross-entropy on the tokens that a demonstration acted with, global token mean."""

import numpy as np

from temper.trainer.advantage import Floats, Scores
from temper.trainer.aggregation import aggregate
from temper.trainer.algorithms.base import Algorithm, LossTerms, Settings, TokenBatch
from temper.trainer.algorithms.policy_gradient import OPTIMIZERS, UPDATES


def cross_entropy(tokens: TokenBatch, _: Settings) -> LossTerms:
    """``-log π`` per action token."""
    totals = tokens.totals
    loss = aggregate(
        "token_mean",
        -tokens.log_pi,
        tokens.sequence,
        tokens.lengths,
        tokens=totals.tokens,
        sequences=totals.sequences,
        horizon=1.0,
    )
    return LossTerms(loss, {"entropy": tokens.entropy.detach().sum(), "nll": (-tokens.log_pi.detach()).sum()})


def all_ones(scores: Scores, _: Settings) -> Floats:
    """Demonstrations weigh the same, whatever they scored."""
    return np.where(scores.valid, 1.0, 0.0)


ALGORITHM = Algorithm(
    name="sft",
    summary="Cross-entropy on demonstrations.",
    loss=cross_entropy,
    advantages=all_ones,
    params=dict(UPDATES),
    choices=dict(OPTIMIZERS),
    needs_reward=False,
)
