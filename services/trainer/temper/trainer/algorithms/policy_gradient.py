"""What the policy-gradient algorithms share: knobs, correction, aggregation and the metrics of every step.

``compose`` turns a per-token policy loss into a full loss function; each algorithm file is then its name, its knobs and one call.
"""

from collections.abc import Callable, Mapping

from temper.runtime.errors import Rejected
from temper.trainer import correction
from temper.trainer.advantage import ESTIMATORS, Floats, Scores
from temper.trainer.aggregation import MODES, aggregate
from temper.trainer.algorithms.base import Choice, Loss, LossTerms, Param, Settings, TokenBatch
from temper.trainer.losses import PolicyLoss, ratio
from temper.trainer.tensors import Tensor

Policy = Callable[[Tensor, TokenBatch, Settings], PolicyLoss]
"""(log_w with gradient, tokens, settings) -> loss per token."""

UPDATES: Mapping[str, Param] = {
    "mini_batches": Param(1, 1, 64),
    "epochs": Param(1, 1, 16),
    "muon_lr": Param(0.02, 1e-6, 1.0),
}
"""Optimizer updates per step: the step's groups are cut into mini-batches, and gone through this many times."""
OPTIMIZERS: Mapping[str, Choice] = {"optimizer": Choice("adamw", ("adamw", "muon"))}
"""Which optimizer hidden matrices get; everything else is AdamW's."""

COMMON: Mapping[str, Param] = {
    **UPDATES,
    "correction_cap": Param(2.0, 1.0, 100.0),
    "entropy_bonus": Param(0.0, 0.0, 1.0),
    "horizon": Param(1024.0, 1.0, 1e6),
}
CLIP: Mapping[str, Param] = {
    "clip_low_delta": Param(0.2, 0.0, 1.0),
    "clip_high_delta": Param(0.2, 0.0, 100.0),
}


def choices(
    *, advantage: str = "grpo", aggregation: str = "token_mean", corrected: str = "tis_token"
) -> dict[str, Choice]:
    """The named knobs of every policy-gradient algorithm, with an algorithm's own defaults."""
    return {
        **OPTIMIZERS,
        "advantage": Choice(advantage, tuple(ESTIMATORS)),
        "aggregation": Choice(aggregation, MODES),
        "correction": Choice(corrected, correction.MODES),
    }


def advantages(scores: Scores, settings: Settings) -> Floats:
    """[sample] advantages by the chosen estimator."""
    return ESTIMATORS[settings.choices["advantage"]](scores)


def compose(policy: Policy) -> Loss:
    """A loss function: policy loss per token, times the mismatch weight, aggregated; with the metrics of a step."""

    def loss(tokens: TokenBatch, settings: Settings) -> LossTerms:
        mode = settings.choices["correction"]
        old = tokens.log_mu if mode == "bypass" else tokens.log_old
        log_w = tokens.log_pi - old
        per_token = policy(log_w, tokens, settings)
        log_rho = (tokens.log_old - tokens.log_mu).detach()
        weight = correction.weights(
            mode, log_rho, tokens.sequence, tokens.lengths, cap=settings["correction_cap"]
        )
        value = per_token.value if weight is None else per_token.value * weight
        if settings["entropy_bonus"] > 0.0:
            value = value - tokens.entropy * settings["entropy_bonus"]
        total = aggregate(
            settings.choices["aggregation"],
            value,
            tokens.sequence,
            tokens.lengths,
            tokens=tokens.totals.tokens,
            sequences=tokens.totals.sequences,
            horizon=settings["horizon"],
        )
        sums = _metrics(tokens, per_token, log_w.detach(), log_rho)
        return LossTerms(total, sums, {"mismatch_max": log_rho.abs().max()})

    return loss


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


def refuse_unclipped(settings: Settings, max_staleness: int) -> None:
    """Unclipped importance weighting off-policy diverges; it must be asked for twice."""
    if max_staleness > 0 and settings["allow_unclipped"] < 1:
        raise Rejected(
            f"an unclipped loss with max_staleness = {max_staleness} diverges",
            field="phase.max_staleness",
            hint="set max_staleness = 0, or algorithm_params.allow_unclipped = 1",
        )
