"""What algorithms share whose advantages differ from token to token: the KL penalty in the reward, no estimator by sample."""

from temper.trainer.algorithms.base import Choice, Loss, LossTerms, Settings, TokenBatch
from temper.trainer.algorithms.grpo import clipped
from temper.trainer.algorithms.policy_gradient import choices, compose
from temper.trainer.algorithms.targets import Measured

CHOICES = {
    **{name: choice for name, choice in choices().items() if name != "advantage"},
    "kl_in": Choice("reward", ("reward", "loss")),
}
"""``kl_in``: where the penalty goes that ``kl_beta`` asks for."""

_in_loss: Loss = compose(clipped)
_in_reward: Loss = compose(clipped, kl_in_loss=False)


def clipped_loss(tokens: TokenBatch, settings: Settings) -> LossTerms:
    """PPO clip, with the penalty where the phase wants it."""
    return (_in_loss if settings.choices["kl_in"] == "loss" else _in_reward)(tokens, settings)


def reward_beta(measured: Measured, settings: Settings) -> float:
    """β as far as it is taken off the reward."""
    return measured.kl_beta if settings.choices["kl_in"] == "reward" else 0.0
