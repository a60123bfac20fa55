"""A Bradley-Terry reward model on the policy's trunk: the head at a sequence's last token says how good it is."""

import numpy as np

from temper.runtime.errors import Rejected
from temper.trainer.algorithms.base import Algorithm, LossTerms, Param, Settings, TokenBatch
from temper.trainer.algorithms.policy_gradient import OPTIMIZERS, UPDATES
from temper.trainer.algorithms.preferences import bradley_terry, rewards_themselves
from temper.trainer.algorithms.targets import Measured, Needs, Targets


def prepare(measured: Measured, settings: Settings) -> Targets:
    """``-log sigmoid(r_c - r_r - margin) + c·(r_c + r_r)²`` over pairs, and its derivative by every score."""
    if measured.scores is None:
        raise Rejected("the engine measured no scores", field="phase.algorithm")
    pairs = list(measured.pairs())
    found = bradley_terry(measured.scores, pairs, margin=settings["margin"])
    slope, extra = found.slope.copy(), 0.0
    for chosen, rejected in pairs:
        both = float(measured.scores[chosen] + measured.scores[rejected])
        extra += settings["centring"] * both * both / len(pairs)
        slope[[chosen, rejected]] += 2.0 * settings["centring"] * both / len(pairs)
    scale = float(np.abs(measured.scores).mean()) if measured.scores.size else 0.0
    metrics = {**found.metrics("rm"), "rm_scale": scale}
    return Targets(score_weight=slope, loss=found.loss + extra, metrics=metrics, nothing=found.nothing)


def loss(tokens: TokenBatch, _: Settings) -> LossTerms:
    """The surrogate over scores; its value is taken off again."""
    if tokens.score is None or tokens.score_weight is None:
        raise Rejected("the engine measured no scores", field="phase.algorithm")
    surrogate = (tokens.score * tokens.score_weight).sum()
    return LossTerms(surrogate - surrogate.detach(), {"entropy": tokens.entropy.detach().sum()})


ALGORITHM = Algorithm(
    name="reward_model",
    summary="Bradley-Terry on the best and the worst sample of each task.",
    loss=loss,
    advantages=rewards_themselves,
    params={**UPDATES, "margin": Param(0.0, 0.0, 100.0), "centring": Param(0.0, 0.0, 10.0)},
    choices=dict(OPTIMIZERS),
    needs=lambda _: Needs(scores=True, targets=True, every_update=True),
    prepare=prepare,
)
