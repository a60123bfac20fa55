"""CISPO: the clipped ratio is a weight without gradient, so no token is ever cut off from learning."""

from temper.trainer.algorithms.base import Param, Settings, TokenBatch
from temper.trainer.algorithms.policy_gradient import algorithm
from temper.trainer.losses import PolicyLoss, cispo
from temper.trainer.tensors import Tensor


def weighted(log_w: Tensor, tokens: TokenBatch, settings: Settings) -> PolicyLoss:
    """``-sg(clip(w))·A·log π`` with absolute bounds on w."""
    low, high = settings["clip_low_ratio"], settings["clip_high_ratio"]
    return cispo(log_w, tokens.log_pi, tokens.advantage, low_ratio=low, high_ratio=high)


ALGORITHM = algorithm(
    "cispo",
    "Clipped importance weights (0..5) on log-likelihood.",
    weighted,
    params={"clip_low_ratio": Param(0.0, 0.0, 1.0), "clip_high_ratio": Param(5.0, 1.0, 100.0)},
)
