"""GRPO: group-standardised advantages, clipped ratios, token mean; the default."""

from temper.runtime.errors import Rejected
from temper.trainer.algorithms.base import Param, Settings, TokenBatch
from temper.trainer.algorithms.policy_gradient import CLIP, algorithm, check
from temper.trainer.losses import PolicyLoss, ppo_clip
from temper.trainer.tensors import Tensor

CLIPPED = {**CLIP, "dual_clip": Param(0.0, 0.0, 100.0)}
"""Knobs of :func:`clipped`."""


def clipped(log_w: Tensor, tokens: TokenBatch, settings: Settings) -> PolicyLoss:
    """PPO clip with the phase's bounds."""
    return ppo_clip(
        log_w,
        tokens.advantage,
        low=settings["clip_low_delta"],
        high=settings["clip_high_delta"],
        dual=settings["dual_clip"],
    )


def check_clip(settings: Settings, max_staleness: int) -> None:
    """A dual clip at or below 1 would cut every token with a negative advantage."""
    check(settings, max_staleness)
    if 0.0 < settings["dual_clip"] <= 1.0:
        raise Rejected(
            f"dual_clip {settings['dual_clip']:g} must be above 1, or 0 for none",
            field="phase.algorithm_params.dual_clip",
            hint="3.0 is the usual value",
        )


ALGORITHM = algorithm(
    "grpo",
    "Group-relative advantages (n-1 std) with PPO clipping.",
    clipped,
    params=CLIPPED,
    checks=check_clip,
)
