"""Plain importance sampling without a trust region; for comparison only."""

from temper.trainer.algorithms.base import Algorithm, Param, Settings, TokenBatch
from temper.trainer.algorithms.policy_gradient import COMMON, advantages, choices, compose, refuse_unclipped
from temper.trainer.losses import PolicyLoss, unclipped
from temper.trainer.tensors import Tensor


def plain(log_w: Tensor, tokens: TokenBatch, _: Settings) -> PolicyLoss:
    """``-A·w``."""
    return unclipped(log_w, tokens.advantage)


ALGORITHM = Algorithm(
    name="importance",
    summary="Unclipped importance weighting; refused off-policy unless allow_unclipped = 1.",
    loss=compose(plain),
    advantages=advantages,
    params={**COMMON, "allow_unclipped": Param(0, 0, 1)},
    choices=choices(),
    check=refuse_unclipped,
)
