"""DAPO's loss (arXiv 2503.14476): the upper clip bound is wider than the lower one."""

from temper.trainer.algorithms.base import Param
from temper.trainer.algorithms.grpo import CLIPPED, check_clip, clipped
from temper.trainer.algorithms.policy_gradient import algorithm

ALGORITHM = algorithm(
    "dapo",
    "GRPO with clip bounds 0.2 / 0.28.",
    clipped,
    params={**CLIPPED, "clip_high_delta": Param(0.28, 0.0, 100.0), "dynamic_sampling": Param(1, 0, 1)},
    checks=check_clip,
)
