"""Gradients domain by domain: taken apart, compared, and put together again by a merging method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, nn

from temper.trainer.advantage import Floats
from temper.trainer.merging import METHODS, Domains
from temper.trainer.merging.gradnorm import next_weights
from temper.trainer.samples import Sample

LEAST_LOSS = 1e-3
"""What is left to learn is never nothing: a rate of 0 would have no inverse."""


@dataclass(slots=True)
class Balance:
    """GradNorm's memory, by domain."""

    weight: dict[str, float] = field(default_factory=dict[str, float])
    first_loss: dict[str, float] = field(default_factory=dict[str, float])

    def weights(self, names: Sequence[str]) -> Floats:
        """[domain] weights, 1 for a domain that is new, summing to the number of domains."""
        found = np.array([self.weight.get(name, 1.0) for name in names])
        return found * found.size / found.sum()

    def learn(self, names: Sequence[str], norms: Floats, loss: Floats) -> None:
        """One step of GradNorm."""
        for name, value in zip(names, loss, strict=True):
            self.first_loss.setdefault(name, float(value))
        first = np.array([self.first_loss[name] for name in names])
        moved = next_weights(self.weights(names), norms, loss, first)
        self.weight |= dict(zip(names, moved.tolist(), strict=True))

    def facts(self) -> dict[str, dict[str, float]]:
        """For a snapshot."""
        return {"weight": dict(self.weight), "first_loss": dict(self.first_loss)}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Mapping[str, float]]) -> Balance:
        """The inverse of ``facts``."""
        return cls(dict(facts.get("weight", {})), dict(facts.get("first_loss", {})))


@dataclass(slots=True)
class Bucket:
    """One domain's part of an update's gradient."""

    name: str
    fraction: float
    """Its part of what the loss counts: tokens or sequences."""
    left: float
    """What is left to learn: a mean loss or a mean failure."""
    gradient: list[Tensor | None]
    """One per parameter: gradients whose sum over domains is that of the update."""


def collect(model: nn.Module) -> list[Tensor | None]:
    """Take the gradients out of a model."""
    found = [p.grad for p in model.parameters()]
    model.zero_grad(set_to_none=True)
    return found


def merge(
    model: nn.Module,
    buckets: Sequence[Bucket],
    shares: Floats | None,
    method: str,
    balance: Balance,
    seed: int,
) -> dict[str, float]:
    """Put the merged gradient into the model; gives what is reported. ``shares`` None: each domain counts as its fraction."""
    names = [bucket.name for bucket in buckets]
    fractions = np.array([bucket.fraction for bucket in buckets])
    gram = _gram(buckets) / np.outer(fractions, fractions)
    share = fractions if shares is None else shares
    domains = Domains(names, gram, share, balance.weights(names), seed)
    if not np.isfinite(
        gram
    ).all():  # the caller sees a gradient that is not finite and leaves the weights alone
        domains = replace(domains, gram=np.zeros_like(gram))
    found = METHODS[method](domains) / fractions
    if method == "gradnorm":
        balance.learn(names, domains.norms, np.array([max(b.left, LEAST_LOSS) for b in buckets]))
    for index, param in enumerate(model.parameters()):
        parts = [(c, b.gradient[index]) for c, b in zip(found, buckets, strict=True)]
        given = [part * float(c) for c, part in parts if part is not None]
        param.grad = torch.stack(given).sum(dim=0) if given else None
    return domains.report()


def _gram(buckets: Sequence[Bucket]) -> Floats:
    """[domain, domain] inner products in double precision, summed parameter by parameter."""
    out = np.zeros((len(buckets), len(buckets)))
    for parts in zip(*(bucket.gradient for bucket in buckets), strict=True):
        like = next((part for part in parts if part is not None), None)
        if like is None:
            continue
        rows = torch.stack([torch.zeros_like(like) if p is None else p for p in parts]).flatten(1).double()
        out += (rows @ rows.T).cpu().numpy()
    return out


def by_domain(samples: Sequence[Sample]) -> dict[str, list[int]]:
    """Indices of samples by domain, in order of appearance."""
    found: dict[str, list[int]] = {}
    for index, sample in enumerate(samples):
        found.setdefault(sample.domain, []).append(index)
    return found
