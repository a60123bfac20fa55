"""On-policy distillation: the student's own samples, with the reverse KL to a teacher taken off token by token.

``A_t = -(log π_old - log π_teacher)`` under a clipped loss (arXiv 2306.13649 with samples for the expectation). Teacher and student
share one vocabulary. ``reward_coef`` adds the verifier's group advantage.
"""

from temper.trainer.algorithms.base import Algorithm, Effect, Param, Settings
from temper.trainer.algorithms.grpo import CLIPPED, check_clip, clipped
from temper.trainer.algorithms.policy_gradient import COMMON, advantages, choices, compose, most_uncertain
from temper.trainer.algorithms.targets import Measured, Needs, Targets


def prepare(measured: Measured, settings: Settings) -> Targets:
    """[token] ``reward_coef·A - kl_coef·k1``."""
    found = [
        settings["reward_coef"] * reward - settings["distill_coef"] * kl
        for reward, kl in zip(measured.advantages, measured.kl(), strict=True)
    ]
    return Targets(advantages=found, keep=most_uncertain(measured.entropy, settings["top_entropy"]))


REWARDED = Effect(lambda settings: settings["reward_coef"] > 0.0, "reward_coef above 0")


ALGORITHM = Algorithm(
    name="distill",
    summary="Reverse KL to a teacher on the student's own samples.",
    loss=compose(clipped, kl_in_loss=False),
    advantages=advantages,
    params={
        **{name: param for name, param in COMMON.items() if not name.startswith("kl_")},
        **CLIPPED,
        "distill_coef": Param(1.0, 0.0, 100.0),
        "reward_coef": Param(0.0, 0.0, 100.0),
    },
    choices={name: choice for name, choice in choices().items() if name != "kl_estimator"},
    check=check_clip,
    effects=dict.fromkeys(("advantage", "reward_scale", "overlong_length", "rm_weight"), REWARDED),
    needs=lambda _: Needs(reference=True, targets=True),
    prepare=prepare,
    wants_teacher=True,
)
