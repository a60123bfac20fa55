"""Dr. GRPO: mean-only advantages, and a constant in place of each sample's length."""

from temper.trainer.algorithms.base import Algorithm
from temper.trainer.algorithms.grpo import DUAL, clipped
from temper.trainer.algorithms.policy_gradient import CLIP, COMMON, advantages, choices, compose

ALGORITHM = Algorithm(
    name="dr_grpo",
    summary="Mean-only advantages; loss summed over tokens and divided by a constant horizon.",
    loss=compose(clipped),
    advantages=advantages,
    params={**COMMON, **CLIP, **DUAL},
    choices=choices(advantage="dr_grpo", aggregation="seq_mean_token_sum_norm"),
)
