"""DPO (arXiv 2305.18290) on the best and the worst sample of each task; tasks without a difference say nothing."""

import numpy as np

from temper.trainer.algorithms.base import Algorithm, LossTerms, Param, Settings, TokenBatch
from temper.trainer.algorithms.policy_gradient import OPTIMIZERS, UPDATES
from temper.trainer.algorithms.preferences import bradley_terry, rewards_themselves
from temper.trainer.algorithms.targets import Measured, Needs, Targets


def prepare(measured: Measured, settings: Settings) -> Targets:
    """``-log sigmoid(β[(log π/π_ref)_chosen - (log π/π_ref)_rejected])``, sums over action tokens; its derivative per sequence."""
    beta = settings["dpo_beta"]
    gained = beta * np.array([float(np.sum(each)) for each in measured.log_ratio()])
    found = bradley_terry(gained, list(measured.pairs()))
    per_token = [
        np.full(each.size, -beta * slope) for each, slope in zip(measured.log_pi, found.slope, strict=True)
    ]
    return Targets(advantages=per_token, loss=found.loss, metrics=found.metrics("dpo"), nothing=found.nothing)


def loss(tokens: TokenBatch, _: Settings) -> LossTerms:
    """The surrogate: its gradient is that of the loss, its value is not, so it is taken off again."""
    surrogate = -(tokens.advantage * tokens.log_pi).sum()
    return LossTerms(surrogate - surrogate.detach(), {"entropy": tokens.entropy.detach().sum()})


ALGORITHM = Algorithm(
    name="dpo",
    summary="Preference pairs (best and worst of a task) against the policy at the start of the phase.",
    loss=loss,
    advantages=rewards_themselves,
    params={**UPDATES, "dpo_beta": Param(0.1, 1e-4, 100.0)},
    choices=dict(OPTIMIZERS),
    needs=lambda _: Needs(reference=True, targets=True, every_update=True),
    prepare=prepare,
)
