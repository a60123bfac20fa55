"""Gradients domain by domain: taken apart, compared, and put together again by a merging method."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from temper.trainer.advantage import Floats
from temper.trainer.algorithms.base import Algorithm, Totals
from temper.trainer.algorithms.policy_gradient import COMPARED_EVERY
from temper.trainer.engine.torch.updates import Update
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


class Gradients(Protocol):
    """The gradient of the model that is being trained, wherever it lies."""

    def take(self) -> list[Tensor | None]:
        """Take it out, one tensor per parameter; the model has none afterwards."""
        ...

    def gram(self, buckets: Sequence[Bucket]) -> Floats:
        """[domain, domain] inner products of what was taken, in double precision."""
        ...

    def put(self, merged: Iterable[Tensor | None]) -> None:
        """Give the model a gradient again."""
        ...


class ModelGradients:
    """``Gradients`` of a model in this process."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def take(self) -> list[Tensor | None]:
        """See ``Gradients``."""
        found = [p.grad for p in self._model.parameters()]
        self._model.zero_grad(set_to_none=True)
        return found

    def gram(self, buckets: Sequence[Bucket]) -> Floats:
        """See ``Gradients``."""
        out = np.zeros((len(buckets), len(buckets)))
        for parts in zip(*(bucket.gradient for bucket in buckets), strict=True):
            out += products(parts)
        return out

    def put(self, merged: Iterable[Tensor | None]) -> None:
        """See ``Gradients``."""
        for param, gradient in zip(self._model.parameters(), merged, strict=True):
            param.grad = gradient


def products(parts: Sequence[Tensor | None]) -> Floats:
    """[domain, domain] inner products of one parameter's gradients, in double precision; None is zero."""
    like = next((part for part in parts if part is not None), None)
    if like is None:
        return np.zeros((len(parts), len(parts)))
    rows = torch.stack([torch.zeros_like(like) if p is None else p for p in parts]).flatten(1).double()
    return (rows @ rows.T).cpu().numpy()


def apart(update: Update) -> bool:
    """Whether the update needs the gradient of each domain by itself."""
    if len({update.batch.samples[i].domain for i in update.members}) < 2:
        return False
    choices, asked = update.settings.choices, int(update.settings["conflict_every"])
    every = COMPARED_EVERY if asked < 0 else asked
    looked_at = every > 0 and update.batch.number % every == 0
    return looked_at or choices["merge"] != "sum" or choices["domain_loss"] == "by_share"


def domain_by_domain(
    update: Update,
    totals: Totals,
    accumulate: Callable[[Sequence[int]], float],
    gradients: Gradients,
    balance: Balance,
) -> tuple[float, dict[str, float]]:
    """Gradients domain by domain, merged; the loss, and what is reported about the domains.

    ``accumulate`` runs forward and backward over members of the update and gives their share of the loss.
    """
    buckets: list[Bucket] = []
    loss = 0.0
    whole = totals.sequences if update.by_sequence else totals.tokens
    samples = [update.batch.samples[i] for i in update.members]
    for name, members in by_domain(samples).items():
        found = accumulate([update.members[k] for k in members])
        counts = [1 if update.by_sequence else samples[k].actions for k in members]
        fraction = sum(counts) / whole
        left = _left([samples[k] for k in members], found / fraction, update.algorithm)
        buckets.append(Bucket(name, fraction, left, gradients.take()))
        loss += found
    return loss, merge(gradients, buckets, _shares(update, buckets), update, balance)


def _shares(update: Update, buckets: Sequence[Bucket]) -> Floats | None:
    """[domain] what the job's mix says, where the update is to follow it."""
    if update.settings.choices["domain_loss"] != "by_share":
        return None
    given = np.array([update.batch.shares.get(bucket.name, 0.0) for bucket in buckets])
    return given / given.sum() if given.sum() > 0 else None


def _left(samples: Sequence[Sample], loss: float, algorithm: Algorithm) -> float:
    """What a domain has left to learn: its mean failure where there are rewards, else its mean loss."""
    if not algorithm.needs_reward:
        return abs(loss)
    return 1.0 - float(np.mean([sample.reward for sample in samples]))


def merge(
    gradients: Gradients, buckets: Sequence[Bucket], shares: Floats | None, update: Update, balance: Balance
) -> dict[str, float]:
    """Put the merged gradient into the model; gives what is reported. ``shares`` None: each domain counts as its fraction."""
    method, names = update.settings.choices["merge"], [bucket.name for bucket in buckets]
    fractions = np.array([bucket.fraction for bucket in buckets])
    gram = gradients.gram(buckets) / np.outer(fractions, fractions)
    share = fractions if shares is None else shares
    domains = Domains(names, gram, share, balance.weights(names), update.batch.number)
    if not np.isfinite(
        gram
    ).all():  # the caller sees a gradient that is not finite and leaves the weights alone
        domains = replace(domains, gram=np.zeros_like(gram))
    found = METHODS[method](domains) / fractions
    if method == "gradnorm":
        balance.learn(names, domains.norms, np.array([max(b.left, LEAST_LOSS) for b in buckets]))
    gradients.put(
        _combined(found, [bucket.gradient[index] for bucket in buckets])
        for index in range(len(buckets[0].gradient))
    )
    return domains.report()


def _combined(coefficients: Floats, parts: Sequence[Tensor | None]) -> Tensor | None:
    """One parameter's gradient from those of the domains."""
    given = [part * float(c) for c, part in zip(coefficients, parts, strict=True) if part is not None]
    return torch.stack(given).sum(dim=0) if given else None


def by_domain(samples: Sequence[Sample]) -> dict[str, list[int]]:
    """Indices of samples by domain, in order of appearance."""
    found: dict[str, list[int]] = {}
    for index, sample in enumerate(samples):
        found.setdefault(sample.domain, []).append(index)
    return found
