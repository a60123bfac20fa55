"""What one optimizer update knows: which samples, what was fixed at the start of the step, and the arrays a loss sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from temper.trainer import kl
from temper.trainer.algorithms.base import Algorithm, Settings, TokenBatch, Totals
from temper.trainer.algorithms.targets import Measured, Needs, PerToken
from temper.trainer.engine.torch.forward import Gathered, Prediction
from temper.trainer.engine.torch.packing import Packed
from temper.trainer.samples import Batch, Sample

BySample = Mapping[int, NDArray[np.floating]]
"""[action] arrays by index into the batch's samples."""


@dataclass(frozen=True, slots=True)
class Made:
    """What is fixed before an update, by sample; what is empty is not needed or has a default."""

    old: BySample = field(default_factory=dict[int, NDArray[np.floating]])
    """log π_old. The first update of a step is its own π_old."""
    reference: BySample = field(default_factory=dict[int, NDArray[np.floating]])
    """log π_ref."""
    values: BySample = field(default_factory=dict[int, NDArray[np.floating]])
    """V at the start of the step."""
    advantages: BySample = field(default_factory=dict[int, NDArray[np.floating]])
    """Per token, in place of the sample's one number."""
    returns: BySample = field(default_factory=dict[int, NDArray[np.floating]])
    """What V should be."""
    keep: BySample = field(default_factory=dict[int, NDArray[np.floating]])
    """Tokens that may speak."""
    score_weight: Mapping[int, float] = field(default_factory=dict[int, float])
    """∂L/∂score."""
    loss: float = 0.0
    """Value of the loss where the surrogate has none."""
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    """What ``prepare`` reports."""
    nothing: str = ""
    """Why there is nothing to learn, if so."""

    @classmethod
    def of(cls, members: Sequence[int], first: Measured, *, several: bool) -> Made:
        """π_old, π_ref and V_old from a measurement."""
        return cls(
            old=by_sample(members, first.log_pi) if several else {},
            reference=by_sample(members, first.log_ref),
            values=by_sample(members, first.values),
        )

    def aimed(
        self, members: Sequence[int], algorithm: Algorithm, settings: Settings, found: Measured
    ) -> Made:
        """With the algorithm's targets for these samples."""
        if algorithm.prepare is None:
            return self
        targets = algorithm.prepare(found, settings)
        weights = targets.score_weight
        return replace(
            self,
            reference=self.reference or by_sample(members, found.log_ref),
            advantages=by_sample(members, targets.advantages),
            returns=by_sample(members, targets.returns),
            keep=by_sample(members, targets.keep),
            score_weight={} if weights is None else dict(zip(members, weights.tolist(), strict=True)),
            loss=targets.loss or 0.0,
            metrics=targets.metrics,
            nothing=targets.nothing,
        )


def by_sample(members: Sequence[int], found: PerToken | Sequence[NDArray[np.float32]] | None) -> BySample:
    """Arrays by the index of their sample; empty for None."""
    return {} if found is None else dict(zip(members, found, strict=True))


@dataclass(frozen=True, slots=True)
class Update:
    """One optimizer update of a step."""

    batch: Batch
    members: Sequence[int]
    """Indices into ``batch.samples``."""
    algorithm: Algorithm
    settings: Settings
    needs: Needs
    made: Made
    progress: float = 0.0
    """Share of the step's updates that were made before this one."""

    @property
    def by_sequence(self) -> bool:
        """Whether the loss is a mean over sequences rather than tokens."""
        mode = self.settings.choices.get("aggregation", "")
        return mode.startswith("seq_") or self.needs.every_update


def updates(batch: Batch, chosen: Sequence[int], mini_batches: int, epochs: int) -> list[list[int]]:
    """Members of each update: task groups dealt round-robin, so that every mini-batch sees every domain."""
    groups = sorted({batch.samples[i].group for i in chosen})
    cuts = min(mini_batches, len(groups))
    parts = [set(groups[k::cuts]) for k in range(cuts)]
    return [[i for i in chosen if batch.samples[i].group in part] for part in parts] * epochs


def measured(
    batch: Batch,
    members: Sequence[int],
    found: Gathered,
    reference: list[NDArray[np.float32]] | None,
    kl_beta: float,
) -> Measured:
    """A measurement in the words of ``prepare``, in double precision."""
    samples = [batch.samples[i] for i in members]
    return Measured(
        rewards=np.array([sample.reward for sample in samples], dtype=np.float64),
        group=np.array([sample.group for sample in samples], dtype=np.int64),
        advantages=batch.advantages[list(members)],
        log_pi=_double(found.log_pi),
        log_mu=_double([sample.logprobs[sample.mask] for sample in samples]),
        entropy=_double(found.entropy),
        log_ref=None if reference is None else _double(reference),
        values=None if found.values is None else _double(found.values),
        scores=None if found.scores is None else found.scores.astype(np.float64),
        kl_beta=kl_beta,
    )


def _double(parts: Sequence[NDArray[np.float32]]) -> list[NDArray[np.float64]]:
    return [part.astype(np.float64) for part in parts]


def token_batch(
    update: Update,
    members: Sequence[int],
    packed: Packed,
    found: Prediction,
    totals: Totals,
    kl_beta: float,
) -> TokenBatch:
    """A micro-batch as a loss sees it."""
    device, made = found.log_pi.device, update.made
    samples = [update.batch.samples[i] for i in members]
    plain = np.repeat(update.batch.advantages[list(members)], [sample.actions for sample in samples])

    def flat(parts: BySample) -> Tensor | None:
        return _flat([parts[i] for i in members], device) if parts else None

    log_mu = _flat([sample.logprobs[sample.mask] for sample in samples], device)
    advantage, old = flat(made.advantages), flat(made.old)
    if log_linear(update.settings):
        old = log_mu + _flat([blend(update, sample) for sample in samples], device) * (
            found.log_pi.detach() - log_mu
        )
    weights = [made.score_weight.get(i, 0.0) for i in members]
    return TokenBatch(
        log_pi=found.log_pi,
        log_old=found.log_pi.detach() if old is None else old,
        log_mu=log_mu,
        entropy=found.entropy,
        advantage=_flat([plain], device) if advantage is None else advantage,
        sequence=packed.sequence.to(device),
        lengths=packed.lengths.to(device),
        totals=totals,
        log_ref=flat(made.reference),
        kl_beta=kl_beta,
        keep=flat(made.keep),
        value=found.value,
        value_old=flat(made.values),
        returns=flat(made.returns),
        score=found.score,
        score_weight=torch.tensor(weights, device=device) if made.score_weight else None,
    )


def log_linear(settings: Settings) -> bool:
    """Whether π_old is interpolated between μ and π instead of measured."""
    return settings.choices.get("proximal") == "log_linear"


def blend(update: Update, sample: Sample) -> NDArray[np.float64]:
    """[action] ``(v_prox - v_μ)/(v_π - v_μ)``, 0 where both are the version that sampled."""
    versions = np.zeros(sample.ids.size) if sample.versions is None else sample.versions
    behind = np.maximum(update.batch.version - versions[sample.mask], 0).astype(np.float64)
    ahead = behind + update.progress
    return np.divide(behind, ahead, out=np.zeros_like(behind), where=ahead > 0)


def _flat(parts: Sequence[NDArray[np.floating]], device: torch.device) -> Tensor:
    return torch.from_numpy(np.concatenate(parts).astype(np.float32)).to(device)


def adapted(beta: float, found: float, settings: Settings) -> float:
    """β for the next step: moved by the controller where the phase gave a target."""
    target = settings.params.get("kl_target", 0.0)
    if target <= 0.0:
        return beta
    return kl.adapt(beta, found, target=target, steps=1, horizon=settings["kl_horizon"])
