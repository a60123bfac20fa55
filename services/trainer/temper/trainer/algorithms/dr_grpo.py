"""Dr. GRPO: mean-only advantages, and a constant in place of each sample's length."""

from temper.trainer.algorithms.grpo import CLIPPED, check_clip, clipped
from temper.trainer.algorithms.policy_gradient import algorithm

ALGORITHM = algorithm(
    "dr_grpo",
    "Mean-only advantages; loss summed over tokens and divided by a constant horizon.",
    clipped,
    params=CLIPPED,
    advantage="dr_grpo",
    aggregation="seq_mean_token_sum_norm",
    checks=check_clip,
)
