"""M2PO: unclipped, without the tokens that hold the largest second moments of the log-ratio (arXiv 2510.01161)."""

import numpy as np

from temper.runtime.errors import Rejected
from temper.trainer.algorithms.base import Param, Settings, TokenBatch
from temper.trainer.algorithms.policy_gradient import algorithm, check, most_uncertain, needs
from temper.trainer.algorithms.targets import Measured, Needs, PerToken, Targets
from temper.trainer.losses import PolicyLoss, unclipped
from temper.trainer.tensors import Tensor


def plain(log_w: Tensor, tokens: TokenBatch, _: Settings) -> PolicyLoss:
    """``-A·w`` on the tokens that are left."""
    return unclipped(log_w, tokens.advantage)


def moments_below(log_w: PerToken, threshold: float) -> PerToken:
    """0 for the tokens with the largest ``(log w)²``, as many as it takes for the mean of the others to be below the threshold."""
    if not log_w:
        return []
    square = np.sort(np.concatenate(log_w) ** 2)
    means = np.cumsum(square) / np.arange(1, square.size + 1)
    kept = int(np.searchsorted(means, threshold, side="left"))  # means of sorted squares never fall
    largest = square[kept - 1] if kept else -1.0
    return [(each**2 <= largest).astype(np.float64) for each in log_w]


def prepare(measured: Measured, settings: Settings) -> Targets:
    """What both rules keep; ``w = π/μ``, for π is where it was when the step began."""
    log_w = [pi - mu for pi, mu in zip(measured.log_pi, measured.log_mu, strict=True)]
    kept = moments_below(log_w, settings["second_moment"])
    sure = most_uncertain(measured.entropy, settings["top_entropy"])
    return Targets(keep=[a * b for a, b in zip(kept, sure, strict=True)])


def wants(settings: Settings) -> Needs:
    """All tokens of the step at once."""
    return Needs(reference=needs(settings).reference, targets=True)


def threshold_given(settings: Settings, max_staleness: int) -> None:
    """There is no value that suits everybody, so none is assumed."""
    check(settings, max_staleness)
    if settings["second_moment"] <= 0.0:
        raise Rejected(
            "m2po needs its threshold on the mean of (log π/μ)²",
            field="phase.algorithm_params.second_moment",
            hint="the paper uses 0.04",
        )


ALGORITHM = algorithm(
    "m2po",
    "Unclipped, without the tokens of largest (log π/μ)²; second_moment must be given.",
    plain,
    params={"second_moment": Param(0.0, 0.0, 100.0)},
    corrected="bypass",
    prepares=prepare,
    wants=wants,
    checks=threshold_given,
)
