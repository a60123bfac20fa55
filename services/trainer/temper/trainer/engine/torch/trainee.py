"""One model that is being trained: its weights, its optimizer, and a step of it.

A step is one or more updates. An update lays out all its samples, counts their tokens and sequences (the *global* denominators),
then runs micro-batch after micro-batch, each adding its share of the loss: the result does not depend on how the batch was cut.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from temper.runtime.errors import Rejected
from temper.trainer.algorithms.base import Algorithm, Settings, Totals
from temper.trainer.algorithms.policy_gradient import COMPARED_EVERY
from temper.trainer.algorithms.targets import NOTHING_MORE, Measured, Needs
from temper.trainer.engine.base import OptimizerSettings
from temper.trainer.engine.torch.forward import Gathered, gather, micro_batches, predict
from temper.trainer.engine.torch.mixture import Balance, Bucket, by_domain, collect, merge
from temper.trainer.engine.torch.model import Decoder
from temper.trainer.engine.torch.optimizers import Optimizers
from temper.trainer.engine.torch.sums import Sums
from temper.trainer.engine.torch.updates import (
    Made,
    Update,
    by_sample,
    measured,
    token_batch,
    updates,
)
from temper.trainer.samples import Batch, Sample


class Trainee:
    """A decoder with an optimizer. ``reference`` and ``beta`` are set by whoever begins a phase."""

    def __init__(self, model: Decoder, device: torch.device, budget: int) -> None:
        self.model = model
        self.optimizers: Optimizers | None = None
        self.reference: Decoder | None = None
        self.beta = 0.0
        self.balance = Balance()
        self._device, self._budget = device, budget

    def forget(self) -> None:
        """Drop moments, reference, β and the balance of domains."""
        self.optimizers, self.reference, self.beta, self.balance = None, None, 0.0, Balance()

    def gather(self, samples: Sequence[Sample], needs: Needs) -> Gathered:
        """Measure samples that acted, without gradients."""
        return gather(self.model, samples, self._budget, self._device, needs)

    def step(
        self, batch: Batch, algorithm: Algorithm, settings: Settings, optimizer: OptimizerSettings
    ) -> Sums:
        """Train on what may be trained on; there must be something."""
        chosen, sums = batch.trainable(), Sums()
        applied = self._tuned(optimizer)
        needs = self._ready(algorithm, settings)
        plan = updates(batch, chosen, int(settings["mini_batches"]), int(settings["epochs"]))
        made = self._made(batch, chosen, algorithm, settings, several=len(plan) > 1)
        for members in plan:
            fresh = made
            if needs.targets and needs.every_update:
                fresh = made.aimed(members, algorithm, settings, self._measure(batch, members, needs))
            update = Update(batch, members, algorithm, settings, needs, fresh)
            self._update(update, applied, optimizer.max_grad_norm, sums)
        return sums

    def _tuned(self, settings: OptimizerSettings) -> Optimizers:
        """The optimizer for the next step; a fresh one when there is none yet or another kind is asked for."""
        muon = settings.muon_lr > 0
        if self.optimizers is None or self.optimizers.muon != muon:
            self.optimizers = Optimizers(self.model, muon=muon)
        self.optimizers.tune(settings)
        return self.optimizers

    def _ready(self, algorithm: Algorithm, settings: Settings) -> Needs:
        """What the algorithm needs is there: a phase that was not begun would train against nothing."""
        needs = algorithm.needs(settings)
        if needs.reference and self.reference is None:
            raise Rejected(f"{algorithm.name} needs a reference", hint="begin the phase first")
        return needs

    def _measure(self, batch: Batch, members: Sequence[int], needs: Needs) -> Measured:
        """What ``prepare`` may want to know about some samples, under the weights as they are."""
        samples = [batch.samples[i] for i in members]
        return measured(
            batch, members, self.gather(samples, needs), self._reference_logprobs(samples), self.beta
        )

    def _reference_logprobs(self, samples: Sequence[Sample]) -> list[NDArray[np.float32]] | None:
        """log π_ref of the action tokens of each sample; None without a reference."""
        if self.reference is None:
            return None
        return gather(self.reference, samples, self._budget, self._device).log_pi

    def _made(
        self, batch: Batch, chosen: Sequence[int], algorithm: Algorithm, settings: Settings, *, several: bool
    ) -> Made:
        """What is fixed for the whole step: π_old, π_ref, V_old and targets that do not change with an update."""
        needs = algorithm.needs(settings)
        whole = needs.targets and not needs.every_update
        if not (whole or needs.reference or (algorithm.needs_reward and several)):
            return Made()
        if whole:
            first = self._measure(batch, chosen, needs)
            return Made.of(chosen, first, several=several).aimed(chosen, algorithm, settings, first)
        samples = [batch.samples[i] for i in chosen]
        old = self.gather(samples, NOTHING_MORE).log_pi if several else None
        return Made(
            old=dict(zip(chosen, old, strict=True)) if old is not None else {},
            reference=by_sample(chosen, self._reference_logprobs(samples)),
        )

    def _update(self, update: Update, optimizers: Optimizers, max_grad_norm: float, sums: Sums) -> None:
        """Forward, backward and one optimizer step over all micro-batches of an update."""
        if update.made.nothing:
            sums.skip(update.made.nothing, update.made.metrics)
            return
        samples = [update.batch.samples[i] for i in update.members]
        totals = Totals(tokens=sum(sample.actions for sample in samples), sequences=len(samples))
        optimizers.zero_grad()
        if self._apart(update, samples):
            loss, reported = self._by_domain(update, samples, totals, sums)
        else:
            loss, reported = self._accumulate(update, update.members, totals, sums), {}
        loss += update.made.loss
        norm = float(nn.utils.clip_grad_norm_(self.model.parameters(), max_grad_norm))
        sums.close(totals.tokens, loss, norm, {**update.made.metrics, **reported})
        if math.isfinite(norm) and math.isfinite(loss):
            optimizers.step()

    def _accumulate(self, update: Update, members: Sequence[int], totals: Totals, sums: Sums) -> float:
        """Forward and backward over all micro-batches of some members; gives their share of the loss."""
        loss = 0.0
        samples = [update.batch.samples[i] for i in members]
        for order, packed in micro_batches(samples, self._budget):
            found = predict(self.model, packed, self._device, update.needs)
            tokens = token_batch(update, [members[k] for k in order], packed, found, totals, self.beta)
            terms = update.algorithm.loss(tokens, update.settings)
            share: Any = terms.loss
            share.backward()
            loss += float(share.item())
            sums.add(terms)
            sums.total_tokens += packed.tokens
        return loss

    def _apart(self, update: Update, samples: Sequence[Sample]) -> bool:
        """Whether the update needs the gradient of each domain by itself."""
        if len({sample.domain for sample in samples}) < 2:
            return False
        choices, asked = update.settings.choices, int(update.settings["conflict_every"])
        every = COMPARED_EVERY if asked < 0 else asked
        looked_at = every > 0 and update.batch.number % every == 0
        return looked_at or choices["merge"] != "sum" or choices["domain_loss"] == "by_share"

    def _by_domain(
        self, update: Update, samples: Sequence[Sample], totals: Totals, sums: Sums
    ) -> tuple[float, dict[str, float]]:
        """Gradients domain by domain, merged; the loss, and what is reported about the domains."""
        buckets: list[Bucket] = []
        loss = 0.0
        whole = totals.sequences if update.by_sequence else totals.tokens
        for name, members in by_domain(samples).items():
            found = self._accumulate(update, [update.members[k] for k in members], totals, sums)
            counts = [1 if update.by_sequence else samples[k].actions for k in members]
            fraction = sum(counts) / whole
            left = _left([samples[k] for k in members], found / fraction, update.algorithm)
            buckets.append(Bucket(name, fraction, left, collect(self.model)))
            loss += found
        shares = None
        if update.settings.choices["domain_loss"] == "by_share":
            given = np.array([update.batch.shares.get(bucket.name, 0.0) for bucket in buckets])
            shares = given / given.sum() if given.sum() > 0 else None
        method = update.settings.choices["merge"]
        return loss, merge(self.model, buckets, shares, method, self.balance, update.batch.number)


def _left(samples: Sequence[Sample], loss: float, algorithm: Algorithm) -> float:
    """What a domain has left to learn: its mean failure where there are rewards, else its mean loss."""
    if not algorithm.needs_reward:
        return abs(loss)
    return 1.0 - float(np.mean([sample.reward for sample in samples]))
