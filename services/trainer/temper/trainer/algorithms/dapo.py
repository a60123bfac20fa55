"""DAPO's loss (arXiv 2503.14476): the upper clip bound is wider than the lower one."""

from temper.trainer.algorithms.base import Algorithm, Param
from temper.trainer.algorithms.grpo import DUAL, clipped
from temper.trainer.algorithms.policy_gradient import CLIP, COMMON, advantages, choices, compose

ALGORITHM = Algorithm(
    name="dapo",
    summary="GRPO with clip bounds 0.2 / 0.28.",
    loss=compose(clipped),
    advantages=advantages,
    params={**COMMON, **CLIP, **DUAL, "clip_high_delta": Param(0.28, 0.0, 100.0)},
    choices=choices(),
)
