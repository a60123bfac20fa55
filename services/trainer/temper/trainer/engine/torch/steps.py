"""What one step is, whoever computes it: in this process or in ranks.

A step is one or more updates. What the algorithm wants to know about all samples of the step or of an update is measured first; then
every update is made by whoever holds the weights.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from temper.runtime.errors import Rejected
from temper.trainer.algorithms.base import Algorithm, Settings, Totals
from temper.trainer.algorithms.targets import NOTHING_MORE, Measured, Needs
from temper.trainer.engine.base import OptimizerSettings, StepOutcome
from temper.trainer.engine.torch.forward import Gathered
from temper.trainer.engine.torch.mixture import Balance
from temper.trainer.engine.torch.sums import Sums
from temper.trainer.engine.torch.updates import (
    Made,
    Update,
    adapted,
    by_sample,
    log_linear,
    measured,
    updates,
)
from temper.trainer.samples import Batch, Sample

_SCORES = Needs(scores=True)


class Stepping(ABC):
    """One model that is being trained. ``beta`` and the reference are set by whoever begins a phase."""

    def __init__(self) -> None:
        self.beta = 0.0
        self.balance = Balance()

    @property
    @abstractmethod
    def has_reference(self) -> bool:
        """Whether a frozen policy is held beside the model."""

    @abstractmethod
    def gather(self, samples: Sequence[Sample], needs: Needs) -> Gathered:
        """Measure samples that acted, without gradients."""

    @abstractmethod
    def reference_logprobs(self, samples: Sequence[Sample]) -> list[NDArray[np.float32]] | None:
        """log π_ref of the action tokens of each sample; None without a reference."""

    @abstractmethod
    def update(self, update: Update, totals: Totals, optimizer: OptimizerSettings, sums: Sums) -> None:
        """Forward, backward and one optimizer step over all micro-batches of an update."""

    def logprobs(self, samples: Sequence[Sample]) -> list[NDArray[np.float32]]:
        """log π of each token of each sample, 0 where nobody acted; as `Engine.logprobs`."""
        out = [np.zeros(sample.ids.size, dtype=np.float32) for sample in samples]
        acting = _acting(samples)
        found = self.gather([samples[i] for i in acting], NOTHING_MORE)
        for i, log_pi in zip(acting, found.log_pi, strict=True):
            out[i][samples[i].mask] = log_pi
        return out

    def scores(self, samples: Sequence[Sample]) -> NDArray[np.float32]:
        """What a reward model says of each sample, NaN where nobody acted [samples]."""
        out = np.full(len(samples), np.nan, dtype=np.float32)
        acting = _acting(samples)
        found = self.gather([samples[i] for i in acting], _SCORES)
        if found.scores is not None:
            out[acting] = found.scores
        return out

    def step(
        self, batch: Batch, algorithm: Algorithm, settings: Settings, optimizer: OptimizerSettings
    ) -> StepOutcome:
        """Train on what may be trained on; there must be something."""
        chosen, sums = batch.trainable(), Sums()
        needs = self._ready(algorithm, settings)
        plan = updates(batch, chosen, int(settings["mini_batches"]), int(settings["epochs"]))
        made = self._made(batch, chosen, algorithm, settings, several=len(plan) > 1)
        for at, members in enumerate(plan):
            fresh = made
            if needs.targets and needs.every_update:
                fresh = made.aimed(members, algorithm, settings, self._measure(batch, members, needs))
            update = Update(batch, members, algorithm, settings, needs, fresh, at / len(plan))
            self._update(update, optimizer, sums)
        metrics = sums.report(optimizer.lr)
        if needs.reference and "kl_ref" in metrics:
            metrics["kl_beta"] = self.beta
            self.beta = adapted(self.beta, metrics["kl_ref"], settings)
        return StepOutcome(metrics, sums.tokens, sums.total_tokens, sums.why_skipped)

    def _ready(self, algorithm: Algorithm, settings: Settings) -> Needs:
        """What the algorithm needs is there: a phase that was not begun would train against nothing."""
        needs = algorithm.needs(settings)
        if needs.reference and not self.has_reference:
            raise Rejected(f"{algorithm.name} needs a reference", hint="begin the phase first")
        return needs

    def _update(self, update: Update, optimizer: OptimizerSettings, sums: Sums) -> None:
        if update.made.nothing:
            sums.skip(update.made.nothing, update.made.metrics)
            return
        samples = [update.batch.samples[i] for i in update.members]
        totals = Totals(tokens=sum(sample.actions for sample in samples), sequences=len(samples))
        self.update(update, totals, optimizer, sums)

    def _measure(self, batch: Batch, members: Sequence[int], needs: Needs) -> Measured:
        samples = [batch.samples[i] for i in members]
        return measured(
            batch, members, self.gather(samples, needs), self.reference_logprobs(samples), self.beta
        )

    def _made(
        self, batch: Batch, chosen: Sequence[int], algorithm: Algorithm, settings: Settings, *, several: bool
    ) -> Made:
        """What is fixed for the whole step: π_old, π_ref, V_old and targets that do not change with an update."""
        needs = algorithm.needs(settings)
        whole = needs.targets and not needs.every_update
        several = several and not log_linear(settings)
        if not (whole or needs.reference or (algorithm.needs_reward and several)):
            return Made()
        if whole:
            first = self._measure(batch, chosen, needs)
            return Made.of(chosen, first, several=several).aimed(chosen, algorithm, settings, first)
        samples = [batch.samples[i] for i in chosen]
        old = self.gather(samples, NOTHING_MORE).log_pi if several else None
        return Made(
            old=dict(zip(chosen, old, strict=True)) if old is not None else {},
            reference=by_sample(chosen, self.reference_logprobs(samples)),
        )


def _acting(samples: Sequence[Sample]) -> list[int]:
    return [i for i, sample in enumerate(samples) if sample.actions]
