"""PPO (arXiv 1707.06347) with GAE (1506.02438): a value head on the policy's trunk says what a token was worth."""

from dataclasses import replace

import numpy as np

from temper.runtime.errors import Rejected
from temper.trainer.advantage import returns
from temper.trainer.advantage.base import whiten
from temper.trainer.aggregation import aggregate
from temper.trainer.algorithms.base import Algorithm, LossTerms, Param, Settings, TokenBatch
from temper.trainer.algorithms.grpo import CLIPPED, check_clip
from temper.trainer.algorithms.policy_gradient import COMMON, most_uncertain, shaped_rewards
from temper.trainer.algorithms.targets import Measured, Needs, PerToken, Targets
from temper.trainer.algorithms.token_level import CHOICES, clipped_loss, reward_beta
from temper.trainer.tensors import Tensor


def prepare(measured: Measured, settings: Settings) -> Targets:
    """GAE over the action tokens of each sequence; advantages are whitened after the returns are taken."""
    if measured.values is None:
        raise Rejected("the engine measured no values", field="phase.algorithm")
    beta = reward_beta(measured, settings)
    advantages: list[np.ndarray[tuple[int], np.dtype[np.float64]]] = []
    targets: list[np.ndarray[tuple[int], np.dtype[np.float64]]] = []
    for reward, kl, values in zip(measured.advantages, measured.kl(), measured.values, strict=True):
        x = returns.token_rewards(float(reward), np.asarray(kl, np.float64), beta=beta)
        found = returns.gae(
            x, np.asarray(values, np.float64), gamma=settings["gamma"], lam=settings["gae_lambda"]
        )
        advantages.append(found[0])
        targets.append(found[1])
    metrics = {"explained_variance": explained_variance(measured.values, targets)}
    white = np.split(whiten(np.concatenate(advantages)), np.cumsum([a.size for a in advantages])[:-1])
    keep = most_uncertain(measured.entropy, settings["top_entropy"])
    return Targets(advantages=white, returns=targets, keep=keep, metrics=metrics)


def explained_variance(values: PerToken, targets: PerToken) -> float:
    """``1 - Var(return - V)/Var(return)``; 0 where returns do not vary."""
    wanted, found = np.concatenate(targets), np.concatenate(values)
    spread = float(wanted.var())
    return 1.0 - float((wanted - found).var()) / spread if spread > 0 else 0.0


def value_loss(value: Tensor, old: Tensor, wanted: Tensor, *, clip: float) -> Tensor:
    """``0.5·max((clipped - R)², (V - R)²)`` per token; V may move by ``clip`` from where it was."""
    near = old + (value - old).clamp(min=-clip, max=clip)
    return ((near - wanted) * (near - wanted)).maximum((value - wanted) * (value - wanted)) * 0.5


def loss(tokens: TokenBatch, settings: Settings) -> LossTerms:
    """Policy loss plus ``value_coef`` times the value loss, both over all action tokens."""
    terms = clipped_loss(tokens, settings)
    if tokens.value is None or tokens.value_old is None or tokens.returns is None:
        raise Rejected("the engine measured no values", field="phase.algorithm")
    per_token = value_loss(tokens.value, tokens.value_old, tokens.returns, clip=settings["value_clip"])
    critic = aggregate(
        "token_mean",
        per_token,
        tokens.sequence,
        tokens.lengths,
        tokens=tokens.totals.tokens,
        sequences=tokens.totals.sequences,
        horizon=1.0,
    )
    sums = {**terms.sums, "value_loss": per_token.detach().sum(), "value_mean": tokens.value.detach().sum()}
    return replace(terms, loss=terms.loss + critic * settings["value_coef"], sums=sums)


def wants(settings: Settings) -> Needs:
    """A critic, and all sequences at once for the whitening."""
    return Needs(reference=settings["kl_beta"] > 0.0, values=True, targets=True)


ALGORITHM = Algorithm(
    name="ppo",
    summary="Clipped PPO with a value head and GAE.",
    loss=loss,
    advantages=shaped_rewards,
    params={
        **COMMON,
        **CLIPPED,
        "gamma": Param(1.0, 0.0, 1.0),
        "gae_lambda": Param(1.0, 0.0, 1.0),
        "value_coef": Param(0.5, 0.0, 100.0),
        "value_clip": Param(0.5, 1e-3, 1e3),
    },
    choices=CHOICES,
    check=check_clip,
    needs=wants,
    prepare=prepare,
)
