"""Estimators of the KL divergence between the policy and a reference, per token (Schulman, joschu.net/blog/kl-approx)."""

from temper.trainer.tensors import Tensor

DIFFERENCE_LIMIT = 20.0
RESULT_LIMIT = 10.0


def k1(log_pi: Tensor, log_ref: Tensor) -> Tensor:
    """``d = log π - log π_ref``: unbiased, may be negative."""
    return _difference(log_pi, log_ref).clamp(min=-RESULT_LIMIT, max=RESULT_LIMIT)


def k2(log_pi: Tensor, log_ref: Tensor) -> Tensor:
    """``d²/2``: its gradient is the gradient of the KL divergence."""
    d = _difference(log_pi, log_ref)
    return (d * d * 0.5).clamp(min=-RESULT_LIMIT, max=RESULT_LIMIT)


def k3(log_pi: Tensor, log_ref: Tensor) -> Tensor:
    """``e^(-d) + d - 1``: unbiased and never negative, but with the wrong gradient inside a loss."""
    d = _difference(log_pi, log_ref)
    return ((-d).exp() + d - 1.0).clamp(min=-RESULT_LIMIT, max=RESULT_LIMIT)


def in_loss(log_pi: Tensor, log_ref: Tensor) -> Tensor:
    """The value of k3 with the gradient of k2 (straight-through): what a loss term should use."""
    gradient = k2(log_pi, log_ref)
    return gradient + (k3(log_pi, log_ref) - gradient).detach()


def unbiased(log_pi: Tensor, log_ref: Tensor, w: Tensor) -> Tensor:
    """``w·k3`` for samples of an older policy, ``w = π/π_old``."""
    return w * k3(log_pi, log_ref)


def adapt(beta: float, kl: float, *, target: float, steps: int, horizon: float) -> float:
    """Next β of the adaptive controller: ``β·(1 + clip(kl/target - 1, ±0.2)·steps/horizon)``."""
    error = max(-0.2, min(0.2, kl / target - 1.0))
    return beta * (1.0 + error * steps / horizon)


def _difference(log_pi: Tensor, log_ref: Tensor) -> Tensor:
    return (log_pi - log_ref).clamp(min=-DIFFERENCE_LIMIT, max=DIFFERENCE_LIMIT)
