"""Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon): momentum whose matrix is made orthogonal before it is applied.

Small transformers learn to copy in a third of the updates that AdamW needs. It is for hidden matrices only; embeddings, norms
and heads stay with AdamW.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

MOMENTUM = 0.95
ROUNDS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic whose iteration pushes singular values towards 1


def orthogonal(matrix: Tensor) -> Tensor:
    """A matrix of the same shape with singular values near 1 (Newton-Schulz, no decomposition)."""
    a, b, c = COEFFICIENTS
    wide = matrix.shape[0] <= matrix.shape[1]
    x = matrix if wide else matrix.T
    x = x / (x.norm() + 1e-7)
    for _ in range(ROUNDS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x if wide else x.T


class Muon(torch.optim.Optimizer):
    """Orthogonalised Nesterov momentum; decoupled weight decay."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # closures are for line searches
        """One update of every matrix that has a gradient."""
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    self._update(param, group["lr"], group["weight_decay"])

    def _update(self, param: Tensor, lr: float, weight_decay: float) -> None:
        state = self.state[param]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(param)
        assert param.grad is not None
        momentum = state["momentum"].lerp_(param.grad, 1 - MOMENTUM)
        ahead = param.grad.lerp(momentum, MOMENTUM)
        gain = (
            max(1.0, param.shape[0] / param.shape[1]) ** 0.5
        )  # equal change of the output, whatever the shape
        param.mul_(1 - lr * weight_decay).add_(orthogonal(ahead), alpha=-lr * gain)
