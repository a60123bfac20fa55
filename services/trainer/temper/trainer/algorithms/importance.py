"""Plain importance sampling without a trust region; for comparison only."""

from temper.trainer.algorithms.base import Param, Settings, TokenBatch
from temper.trainer.algorithms.policy_gradient import algorithm, refuse_unclipped
from temper.trainer.losses import PolicyLoss, unclipped
from temper.trainer.tensors import Tensor


def plain(log_w: Tensor, tokens: TokenBatch, _: Settings) -> PolicyLoss:
    """``-A·w``."""
    return unclipped(log_w, tokens.advantage)


ALGORITHM = algorithm(
    "importance",
    "Unclipped importance weighting; refused off-policy unless allow_unclipped = 1.",
    plain,
    params={"allow_unclipped": Param(0, 0, 1)},
    checks=refuse_unclipped,
)
