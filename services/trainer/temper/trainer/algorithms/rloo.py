"""RLOO: leave-one-out baseline with a clipped loss."""

from temper.trainer.algorithms.base import Algorithm
from temper.trainer.algorithms.grpo import DUAL, clipped
from temper.trainer.algorithms.policy_gradient import CLIP, COMMON, advantages, choices, compose

ALGORITHM = Algorithm(
    name="rloo",
    summary="Each reward against the mean of the others in its group.",
    loss=compose(clipped),
    advantages=advantages,
    params={**COMMON, **CLIP, **DUAL},
    choices=choices(advantage="rloo"),
)
