"""What the policy-gradient algorithms share: knobs, correction, aggregation and the metrics of every step.

``compose`` turns a per-token policy loss into a full loss function; each algorithm file is then its name, its knobs and one call.
"""

from collections.abc import Callable, Mapping

import numpy as np

from temper.runtime.errors import Rejected
from temper.trainer import correction, kl
from temper.trainer.advantage import ESTIMATORS, Floats, Scores
from temper.trainer.advantage.shaping import soft_overlong
from temper.trainer.aggregation import MODES, aggregate
from temper.trainer.algorithms.base import (
    Algorithm,
    Choice,
    Loss,
    LossTerms,
    Param,
    Prepare,
    Settings,
    TokenBatch,
)
from temper.trainer.algorithms.targets import Measured, Needs, PerToken, Targets
from temper.trainer.losses import PolicyLoss, off_policy_keep, ratio
from temper.trainer.merging import METHODS
from temper.trainer.tensors import Tensor

Policy = Callable[[Tensor, TokenBatch, Settings], PolicyLoss]
"""(log_w with gradient, tokens, settings) -> loss per token."""

UPDATES: Mapping[str, Param] = {
    "mini_batches": Param(1, 1, 64),
    "epochs": Param(1, 1, 16),
    "muon_lr": Param(0.02, 1e-6, 1.0),
    "conflict_every": Param(-1, -1, 1e6),
}
"""Optimizer updates per step: the step's groups are cut into mini-batches, and gone through this many times. Every how many steps
the gradients of the domains are compared; -1: every `COMPARED_EVERY` where the engine can."""
COMPARED_EVERY = 10
SCALE_FREE = ("grpo", "gdpo", "maxrl")
"""Estimators that give the same for rewards of any scale."""
OPTIMIZERS: Mapping[str, Choice] = {
    "optimizer": Choice("adamw", ("adamw", "muon")),
    "merge": Choice("sum", tuple(METHODS)),
    "domain_loss": Choice("pooled", ("pooled", "by_share")),
}
"""Which optimizer hidden matrices get (everything else is AdamW's), how the gradients of domains become one, and what a domain weighs:
as many tokens as it has, or its share of the mix."""

KL: Mapping[str, Param] = {
    "kl_beta": Param(0.0, 0.0, 10.0),
    "kl_target": Param(0.0, 0.0, 100.0),
    "kl_horizon": Param(10_000.0, 1.0, 1e9),
}
"""β of the penalty against the policy at the start of the phase (0: none is kept); a target above 0 makes β adaptive."""
JUDGED: Mapping[str, Param] = {
    "rm_weight": Param(0.0, 0.0, 1.0),
    "rm_max_disagreement": Param(0.4, 0.0, 1.0),
    "rm_refresh": Param(0, 0, 1e6),
}
"""Rewards from the job's reward model: its share, where trust ends, and every how many steps it learns from the step's own pairs."""
COMMON: Mapping[str, Param] = {
    **UPDATES,
    **KL,
    **JUDGED,
    "correction_cap": Param(0.0, 0.0, 100.0),
    "entropy_bonus": Param(0.0, 0.0, 1.0),
    "horizon": Param(1024.0, 1.0, 1e6),
    "top_entropy": Param(0.0, 0.0, 1.0),
    "off_policy_delta": Param(0.0, 0.0, 20.0),
    "overlong_length": Param(0, 0, 1e7),
    "overlong_buffer": Param(0, 0, 1e7),
    "overlong_filter": Param(0, 0, 1),
    "dynamic_sampling": Param(0, 0, 1),
    "refill_limit": Param(3, 0, 100),
}
"""``dynamic_sampling`` drops groups without a difference while a step is collected, up to ``refill_limit`` times its size. ``top_entropy`` (share of tokens kept), ``off_policy_delta`` and ``overlong_*`` are off at 0."""
CLIP: Mapping[str, Param] = {
    "clip_low_delta": Param(0.2, 0.0, 1.0),
    "clip_high_delta": Param(0.2, 0.0, 100.0),
}


def algorithm(
    name: str,
    summary: str,
    policy: Policy,
    *,
    params: Mapping[str, Param] = {},
    advantage: str = "grpo",
    aggregation: str = "token_mean",
    corrected: str = "tis_token",
    prepares: Prepare | None = None,
    wants: Callable[[Settings], Needs] | None = None,
    checks: Callable[[Settings, int], None] | None = None,
    named: Mapping[str, Choice] = {},
    warns: Callable[[Settings], str] | None = None,
) -> Algorithm:
    """An entry of the registry whose loss is ``policy`` per token; the common knobs come along."""
    return Algorithm(
        name=name,
        summary=summary,
        loss=compose(policy),
        advantages=advantages,
        params={**COMMON, **params},
        choices={**choices(advantage=advantage, aggregation=aggregation, corrected=corrected), **named},
        check=checks or check,
        warn=warns,
        needs=wants or needs,
        prepare=prepares or prepare,
    )


def choices(
    *, advantage: str = "grpo", aggregation: str = "token_mean", corrected: str = "tis_token"
) -> dict[str, Choice]:
    """The named knobs of every policy-gradient algorithm, with an algorithm's own defaults."""
    return {
        **OPTIMIZERS,
        "advantage": Choice(advantage, tuple(ESTIMATORS)),
        "aggregation": Choice(aggregation, MODES),
        "correction": Choice(corrected, correction.MODES),
        "kl_estimator": Choice("straight_through", ("straight_through", "unbiased")),
        "reward_scale": Choice("none", ("none", "running_std")),
    }


def advantages(scores: Scores, settings: Settings) -> Floats:
    """[sample] advantages by the chosen estimator, from rewards less the penalty on overlong answers."""
    shaped = soft_overlong(scores, settings["overlong_length"], settings["overlong_buffer"])
    return ESTIMATORS[settings.choices["advantage"]](shaped)


def shaped_rewards(scores: Scores, settings: Settings) -> Floats:
    """[sample] rewards less the penalty on overlong answers, for estimators that work token by token in ``prepare``."""
    shaped = soft_overlong(scores, settings["overlong_length"], settings["overlong_buffer"])
    return np.where(scores.valid, shaped.rewards, 0.0)


def needs(settings: Settings) -> Needs:
    """A reference where β > 0; a look at all tokens where a share of them is chosen."""
    return Needs(reference=settings["kl_beta"] > 0.0, targets=settings["top_entropy"] > 0.0)


def prepare(measured: Measured, settings: Settings) -> Targets:
    """The share ``top_entropy`` of tokens at which the policy was least sure (arXiv 2506.01939)."""
    return Targets(keep=most_uncertain(measured.entropy, settings["top_entropy"]))


def most_uncertain(entropy: PerToken, share: float) -> PerToken:
    """1 for the ``share`` of all tokens with the highest entropy, ties included, else 0; all where share is 0."""
    if share <= 0.0 or not entropy:
        return [np.ones_like(each) for each in entropy]
    everything = np.sort(np.concatenate(entropy))[::-1]
    least = everything[max(0, int(np.ceil(share * everything.size)) - 1)]
    return [(each >= least).astype(np.float64) for each in entropy]


def compose(policy: Policy, *, kl_in_loss: bool = True) -> Loss:
    """A loss function: policy loss per token, times the mismatch weight, aggregated; with the metrics of a step."""

    def loss(tokens: TokenBatch, settings: Settings) -> LossTerms:
        mode = settings.choices["correction"]
        old = tokens.log_mu if mode == "bypass" else tokens.log_old
        log_w = tokens.log_pi - old
        per_token = policy(log_w, tokens, settings)
        log_rho = (tokens.log_old - tokens.log_mu).detach()
        weight = correction.weights(
            mode, log_rho, tokens.sequence, tokens.lengths, cap=settings["correction_cap"] or None
        )
        value = per_token.value if weight is None else per_token.value * weight
        value = _masked(value, log_w, tokens, settings)
        sums = _metrics(tokens, per_token, log_w.detach(), log_rho)
        if settings["entropy_bonus"] > 0.0:
            value = value - tokens.entropy * settings["entropy_bonus"]
        if tokens.log_ref is not None:
            sums["kl_ref"] = kl.k3(tokens.log_pi.detach(), tokens.log_ref).sum()
            if kl_in_loss:
                value = value + _penalty(tokens, log_w, settings) * tokens.kl_beta
        if weight is not None:
            sums["correction_masked"] = (weight <= 0.0).float().sum()
        return LossTerms(total(value, tokens, settings), sums, {"mismatch_max": log_rho.abs().max()})

    return loss


def total(value: Tensor, tokens: TokenBatch, settings: Settings) -> Tensor:
    """The chosen aggregation of a loss per token."""
    return aggregate(
        settings.choices["aggregation"],
        value,
        tokens.sequence,
        tokens.lengths,
        tokens=tokens.totals.tokens,
        sequences=tokens.totals.sequences,
        horizon=settings["horizon"],
    )


def _masked(value: Tensor, log_w: Tensor, tokens: TokenBatch, settings: Settings) -> Tensor:
    """Without the tokens that ``prepare`` left out and the sequences that drifted too far in the wrong direction."""
    if tokens.keep is not None:
        value = value * tokens.keep
    if settings["off_policy_delta"] > 0.0:
        value = value * off_policy_keep(
            log_w, tokens.advantage, tokens.sequence, tokens.lengths, delta=settings["off_policy_delta"]
        )
    return value


def _penalty(tokens: TokenBatch, log_w: Tensor, settings: Settings) -> Tensor:
    """KL to the reference per token: k3's value with k2's gradient, or ``w·k3`` for samples of an older policy."""
    if settings.choices["kl_estimator"] == "unbiased":
        return kl.unbiased(tokens.log_pi, _given(tokens.log_ref), ratio(log_w))
    return kl.in_loss(tokens.log_pi, _given(tokens.log_ref))


def _given(value: Tensor | None) -> Tensor:
    if value is None:
        raise Rejected("the engine measured no reference", field="phase.algorithm")
    return value


def _metrics(tokens: TokenBatch, per_token: PolicyLoss, log_w: Tensor, log_rho: Tensor) -> dict[str, Tensor]:
    """Sums over tokens. ``mismatch_*`` compare the rollout engine's μ with π_old (K1 = mean(log μ - log π_old))."""
    rho = ratio(log_rho)
    return {
        "entropy": tokens.entropy.detach().sum(),
        "ratio_mean": ratio(log_w).sum(),
        "clip_low": per_token.clipped_low.sum(),
        "clip_high": per_token.clipped_high.sum(),
        "mismatch_abs": log_rho.abs().sum(),
        "mismatch_k1": (-log_rho).sum(),
        "mismatch_k3": (rho - log_rho - 1.0).sum(),
        "rho_sum": rho.sum(),
        "rho_square": (rho * rho).sum(),
    }


def check(settings: Settings, max_staleness: int) -> None:  # noqa: ARG001 - every check is called alike
    """Refuses knobs that contradict each other."""
    if 0.0 < settings["correction_cap"] < 1.0:
        raise Rejected(
            f"correction_cap {settings['correction_cap']:g} would shrink every weight: it is at least 1, or 0 for the mode's own",
            field="phase.algorithm_params.correction_cap",
        )
    estimator = settings.choices.get("advantage", "")
    if settings.choices.get("reward_scale", "none") != "none" and estimator in SCALE_FREE:
        raise Rejected(
            f"{estimator} divides by the rewards' own deviation or mean: the running one would change nothing",
            field="phase.algorithm_choices.reward_scale",
            hint='leave it out, or choose another advantage, e.g. "rloo"',
        )
    if settings["overlong_filter"] >= 1 and settings["overlong_length"] > 0:
        raise Rejected(
            "answers that were cut off are either left out or penalised",
            field="phase.algorithm_params.overlong_filter",
            hint="set overlong_filter or overlong_length, not both",
        )
    length, buffer = settings["overlong_length"], settings["overlong_buffer"]
    if (length > 0) != (buffer > 0) or buffer > length:
        raise Rejected(
            f"overlong_length {length:g} and overlong_buffer {buffer:g} go together, and the buffer is the smaller one",
            field="phase.algorithm_params.overlong_buffer",
        )


def refuse_unclipped(settings: Settings, max_staleness: int) -> None:
    """Unclipped importance weighting off-policy diverges; it must be asked for twice."""
    check(settings, max_staleness)
    if max_staleness > 0 and settings["allow_unclipped"] < 1:
        raise Rejected(
            f"an unclipped loss with max_staleness = {max_staleness} diverges",
            field="phase.max_staleness",
            hint="set max_staleness = 0, or algorithm_params.allow_unclipped = 1",
        )
