"""SAPO: a smooth gate in place of the clip."""

from temper.trainer.algorithms.base import Param, Settings, TokenBatch
from temper.trainer.algorithms.policy_gradient import algorithm
from temper.trainer.losses import PolicyLoss, sapo
from temper.trainer.tensors import Tensor


def gated(log_w: Tensor, tokens: TokenBatch, settings: Settings) -> PolicyLoss:
    """Sigmoid gate with one temperature for each sign of the advantage."""
    up, down = settings["tau_positive"], settings["tau_negative"]
    return sapo(log_w, tokens.advantage, tau_positive=up, tau_negative=down)


ALGORITHM = algorithm(
    "sapo",
    "Soft sigmoid gate on the ratio.",
    gated,
    params={"tau_positive": Param(1.0, 0.01, 100.0), "tau_negative": Param(1.05, 0.01, 100.0)},
)
