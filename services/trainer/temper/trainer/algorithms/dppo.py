"""DPPO: a trust region in probabilities, as prime-rl has it."""

from temper.trainer.algorithms.base import Param, Settings, TokenBatch
from temper.trainer.algorithms.policy_gradient import algorithm
from temper.trainer.losses import PolicyLoss, dppo
from temper.trainer.tensors import Tensor


def bounded(_: Tensor, tokens: TokenBatch, settings: Settings) -> PolicyLoss:
    """Tokens whose probability moved too far from μ in the direction of A are cut; a square penalty holds all."""
    bound, penalty = settings["probability_bound"], settings["square_penalty"]
    return dppo(tokens.log_pi, tokens.log_mu, tokens.advantage, bound=bound, penalty=penalty)


ALGORITHM = algorithm(
    "dppo",
    "Cut where a probability moved by more than 0.2; (log π/μ)² penalty.",
    bounded,
    params={"probability_bound": Param(0.2, 0.0, 1.0), "square_penalty": Param(1e-3, 0.0, 10.0)},
    corrected="none",  # its ratio is against μ already
)
