"""GRPO: group-standardised advantages, clipped ratios, token mean; the default."""

from temper.trainer.algorithms.base import Algorithm, Param, Settings, TokenBatch
from temper.trainer.algorithms.policy_gradient import CLIP, COMMON, advantages, choices, compose
from temper.trainer.losses import PolicyLoss, ppo_clip
from temper.trainer.tensors import Tensor


def clipped(log_w: Tensor, tokens: TokenBatch, settings: Settings) -> PolicyLoss:
    """PPO clip with the phase's bounds."""
    return ppo_clip(
        log_w,
        tokens.advantage,
        low=settings["clip_low_delta"],
        high=settings["clip_high_delta"],
        dual=settings["dual_clip"],
    )


DUAL = {"dual_clip": Param(0.0, 0.0, 100.0)}

ALGORITHM = Algorithm(
    name="grpo",
    summary="Group-relative advantages (n-1 std) with PPO clipping.",
    loss=compose(clipped),
    advantages=advantages,
    params={**COMMON, **CLIP, **DUAL},
    choices=choices(),
)
