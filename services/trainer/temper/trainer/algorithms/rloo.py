"""RLOO: leave-one-out baseline with a clipped loss."""

from temper.trainer.algorithms.grpo import CLIPPED, check_clip, clipped
from temper.trainer.algorithms.policy_gradient import algorithm

ALGORITHM = algorithm(
    "rloo",
    "Each reward against the mean of the others in its group.",
    clipped,
    params=CLIPPED,
    advantage="rloo",
    checks=check_clip,
)
