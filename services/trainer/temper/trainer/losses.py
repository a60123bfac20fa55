"""Policy losses per action token.

Pure functions of log-ratios and advantages. ``log_w = log π - log π_old`` carries the gradient; everything else is data.
Formulas follow PPO (arXiv 1707.06347), dual clip (1912.09729), GSPO (2507.18071), CISPO (2506.13585), SAPO (2511.20347).
Log-ratios are clamped to ±20 before ``exp``. Returned tensors are ``[token]`` and not yet aggregated.
"""

from dataclasses import dataclass

from temper.trainer.tensors import Tensor

LOG_RATIO_LIMIT = 20.0  # exp(20) = 5e8 still squares within fp32


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """Per-token loss and which side of the trust region each token was on."""

    value: Tensor
    """Loss per action token, with gradient."""
    clipped_low: Tensor
    """1.0 where the ratio was under the lower bound and the bound decided the value."""
    clipped_high: Tensor
    """1.0 where the ratio was over the upper bound and the bound decided the value."""


def ratio(log_w: Tensor) -> Tensor:
    """``exp`` of a log-ratio limited to ±20."""
    return log_w.clamp(min=-LOG_RATIO_LIMIT, max=LOG_RATIO_LIMIT).exp()


def ppo_clip(log_w: Tensor, advantage: Tensor, *, low: float, high: float, dual: float = 0.0) -> PolicyLoss:
    """``max(-A·w, -A·clip(w, 1-low, 1+high))``; with ``dual = c > 1``, at most ``-A·c`` where A < 0."""
    w = ratio(log_w)
    free = -advantage * w
    bounded = -advantage * w.clamp(min=1.0 - low, max=1.0 + high)
    value = free.maximum(bounded)
    if dual > 0.0:
        value = value.minimum(-advantage * dual).where(advantage < 0.0, value)
    return PolicyLoss(value, *_sides(w, advantage, 1.0 - low, 1.0 + high))


def _sides(w: Tensor, advantage: Tensor, floor: float, ceiling: float) -> tuple[Tensor, Tensor]:
    return ((w < floor) & (advantage < 0.0)).float(), ((w > ceiling) & (advantage > 0.0)).float()


def sequence_log_ratio(log_w: Tensor, sequence: Tensor, lengths: Tensor) -> Tensor:
    """Mean log-ratio of its sequence for every token. ``sequence`` is [token] -> index, ``lengths`` [sequence]."""
    total = lengths.new_zeros(lengths.shape[0]).index_add(0, sequence, log_w)
    return (total / lengths)[sequence]


def gspo(
    log_w: Tensor, advantage: Tensor, sequence: Tensor, lengths: Tensor, *, low: float, high: float
) -> PolicyLoss:
    """PPO clip on ``s_i = exp(mean_t log w_t)``; the gradient of each token is that of ``sg(s_i)·π/sg(π)``."""
    mean = sequence_log_ratio(log_w, sequence, lengths).detach()
    return ppo_clip(mean + log_w - log_w.detach(), advantage, low=low, high=high)


def cispo(
    log_w: Tensor, log_pi: Tensor, advantage: Tensor, *, low_ratio: float, high_ratio: float
) -> PolicyLoss:
    """``-sg(clip(w, low, high))·A·log π``: bounds are absolute ratios, and w itself has no gradient."""
    w = ratio(log_w).detach()
    value = -(w.clamp(min=low_ratio, max=high_ratio) * advantage * log_pi)
    return PolicyLoss(value, (w < low_ratio).float(), (w > high_ratio).float())


def sapo(log_w: Tensor, advantage: Tensor, *, tau_positive: float, tau_negative: float) -> PolicyLoss:
    """Soft gate ``(4/τ)·sigmoid(τ(w-1))`` in place of w, with its own τ for either sign of the advantage."""
    w = ratio(log_w)
    up = ((w - 1.0) * tau_positive).sigmoid() * (4.0 / tau_positive)
    down = ((w - 1.0) * tau_negative).sigmoid() * (4.0 / tau_negative)
    gate = up.where(advantage > 0.0, down)
    nothing = (w < -1.0).float()  # a ratio is positive: nothing is ever cut
    return PolicyLoss(-advantage * gate, nothing, nothing)


def dppo(log_pi: Tensor, log_mu: Tensor, advantage: Tensor, *, bound: float, penalty: float) -> PolicyLoss:
    """Cut tokens whose *probability* moved over the bound in the direction of A; ``penalty·(log π/μ)²`` on all."""
    difference = log_pi.clamp(max=0.0).exp().detach() - log_mu.exp()
    high = ((difference > bound) & (advantage > 0.0)).float()
    low = ((difference < -bound) & (advantage < 0.0)).float()
    log_w = log_pi - log_mu
    value = -advantage * ratio(log_w) * (1.0 - high) * (1.0 - low) + log_w * log_w * penalty
    return PolicyLoss(value, low, high)


def unclipped(log_w: Tensor, advantage: Tensor) -> PolicyLoss:
    """Plain importance sampling ``-A·w``, for comparison."""
    w = ratio(log_w)
    nothing = (w < -1.0).float()  # a ratio is positive: nothing is ever cut
    return PolicyLoss(-advantage * w, nothing, nothing)


def off_policy_keep(
    log_w: Tensor, advantage: Tensor, sequence: Tensor, lengths: Tensor, *, delta: float
) -> Tensor:
    """1.0 for tokens of kept sequences: dropped where A < 0 and ``mean_t log(π_old/π) > delta``."""
    drift = -sequence_log_ratio(log_w, sequence, lengths).detach()
    return 1.0 - ((advantage < 0.0) & (drift > delta)).float()
