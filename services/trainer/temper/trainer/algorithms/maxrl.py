"""MaxRL: rewards relative to the group's mean; rewards must not be negative."""

from temper.trainer.algorithms.grpo import CLIPPED, check_clip, clipped
from temper.trainer.algorithms.policy_gradient import algorithm

ALGORITHM = algorithm(
    "maxrl",
    "Advantages (r - mean) / mean, which weighs hard tasks more.",
    clipped,
    params=CLIPPED,
    advantage="maxrl",
    checks=check_clip,
)
