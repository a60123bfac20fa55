"""REINFORCE++ (arXiv 2501.03262): discounted token returns, whitened over the whole batch, no critic."""

import numpy as np

from temper.trainer.advantage import Floats, returns
from temper.trainer.algorithms.base import Algorithm, Param, Settings
from temper.trainer.algorithms.grpo import CLIPPED, check_clip
from temper.trainer.algorithms.policy_gradient import COMMON, most_uncertain, shaped_rewards
from temper.trainer.algorithms.targets import Measured, Needs, Targets
from temper.trainer.algorithms.token_level import CHOICES, clipped_loss, reward_beta


def prepare(measured: Measured, settings: Settings) -> Targets:
    """[token] advantages: ``-β·k1`` per token and the reward at the last, discounted, whitened."""
    rewards = measured.advantages if settings["group_baseline"] < 1 else centred(measured)
    found = returns.reinforce_pp(
        list(rewards), measured.kl(), beta=reward_beta(measured, settings), gamma=settings["gamma"]
    )
    return Targets(advantages=found, keep=most_uncertain(measured.entropy, settings["top_entropy"]))


def centred(measured: Measured) -> Floats:
    """Rewards less the mean of their group."""
    out = measured.advantages.copy()
    for group in np.unique(measured.group):
        members = measured.group == group
        out[members] -= out[members].mean()
    return out


def wants(settings: Settings) -> Needs:
    """All sequences at once, for the whitening."""
    return Needs(reference=settings["kl_beta"] > 0.0, targets=True)


ALGORITHM = Algorithm(
    name="reinforce_pp",
    summary="Batch-whitened token returns; group_baseline = 1 takes the group's mean off first.",
    loss=clipped_loss,
    advantages=shaped_rewards,
    params={**COMMON, **CLIPPED, "gamma": Param(1.0, 0.0, 1.0), "group_baseline": Param(0, 0, 1)},
    choices=CHOICES,
    check=check_clip,
    needs=wants,
    prepare=prepare,
)
