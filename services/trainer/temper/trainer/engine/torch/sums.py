"""Running totals of one step, and the metrics that they become."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from temper.trainer.algorithms.base import LossTerms


@dataclass(slots=True)
class Sums:
    """Running totals of one step."""

    loss: float = 0.0
    grad_norm: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    """Sums over tokens."""
    maxima: dict[str, float] = field(default_factory=dict[str, float])
    prepared: dict[str, float] = field(default_factory=dict[str, float])
    """Sums over updates of what ``prepare`` reports."""
    tokens: int = 0
    total_tokens: int = 0
    updates: int = 0
    skipped: list[str] = field(default_factory=list[str])

    @property
    def why_skipped(self) -> str:
        """Empty, or why no update of the step was made."""
        return self.skipped[0] if len(self.skipped) == self.updates else ""

    def add(self, terms: LossTerms) -> None:
        """Count one micro-batch."""
        for name, value in terms.sums.items():
            self.metrics[name] = self.metrics.get(name, 0.0) + float(value.item())
        for name, value in terms.maxima.items():
            self.maxima[name] = max(self.maxima.get(name, 0.0), float(value.item()))

    def close(self, tokens: int, loss: float, norm: float, prepared: Mapping[str, float]) -> None:
        """Count one update; one whose loss or gradient is not finite is skipped."""
        self._count(prepared)
        self.tokens += tokens
        self.loss += loss
        if math.isfinite(norm) and math.isfinite(loss):
            self.grad_norm += norm
        else:
            self.skipped.append(f"non-finite gradient (loss {loss:g}, norm {norm:g})")

    def skip(self, why: str, prepared: Mapping[str, float]) -> None:
        """Count an update that was not made."""
        self._count(prepared)
        self.skipped.append(why)

    def _count(self, prepared: Mapping[str, float]) -> None:
        self.updates += 1
        for name, value in prepared.items():
            self.prepared[name] = self.prepared.get(name, 0.0) + value

    def report(self, lr: float) -> dict[str, float]:
        """Means over tokens; effective sample size and χ² of rho = π_old/μ where the algorithm reports rho.

        ``kl`` estimates KL(μ ‖ π_old) without bias: k3 on samples of μ.
        """
        count, updates = max(1, self.tokens), max(1, self.updates)
        found = {name: value / count for name, value in self.metrics.items() if not name.startswith("rho_")}
        found |= self.maxima
        found |= {name: value / updates for name, value in self.prepared.items()}
        if self.metrics.get("rho_square"):
            square, total = self.metrics["rho_square"], self.metrics["rho_sum"]
            found["kl"] = found["mismatch_k3"]
            found["perplexity_ratio"] = math.exp(found["mismatch_k1"])
            found["ess"] = total * total / (square * count)
            found["chi2"] = square / count - 1.0
        found |= {"loss": self.loss / updates, "grad_norm": self.grad_norm / updates, "lr": lr}
        return found | {"updates": float(self.updates - len(self.skipped))}
