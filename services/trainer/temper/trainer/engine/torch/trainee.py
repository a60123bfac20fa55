"""A model that is being trained in this process: its weights, its optimizer, and how one update is made.

An update lays out all its samples, counts their tokens and sequences (the *global* denominators), then runs micro-batch after
micro-batch, each adding its share of the loss: the result does not depend on how the batch was cut.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from temper.trainer.algorithms.base import Totals
from temper.trainer.algorithms.targets import Needs
from temper.trainer.engine.base import OptimizerSettings
from temper.trainer.engine.torch.forward import Gathered, gather, micro_batches, predict
from temper.trainer.engine.torch.mixture import Balance, ModelGradients, apart, domain_by_domain
from temper.trainer.engine.torch.model import Decoder
from temper.trainer.engine.torch.optimizers import Optimizers
from temper.trainer.engine.torch.steps import Stepping
from temper.trainer.engine.torch.sums import Sums
from temper.trainer.engine.torch.updates import Update, token_batch
from temper.trainer.samples import Sample


class Trainee(Stepping):
    """A decoder with an optimizer. ``reference`` and ``beta`` are set by whoever begins a phase."""

    def __init__(self, model: Decoder, device: torch.device, budget: int) -> None:
        super().__init__()
        self.model = model
        self.optimizers: Optimizers | None = None
        self.reference: Decoder | None = None
        self._device, self._budget = device, budget

    def forget(self) -> None:
        """Drop moments, reference, β and the balance of domains."""
        self.optimizers, self.reference, self.beta, self.balance = None, None, 0.0, Balance()

    @property
    def has_reference(self) -> bool:
        """See ``Stepping``."""
        return self.reference is not None

    def gather(self, samples: Sequence[Sample], needs: Needs) -> Gathered:
        """See ``Stepping``."""
        return gather(self.model, samples, self._budget, self._device, needs)

    def reference_logprobs(self, samples: Sequence[Sample]) -> list[NDArray[np.float32]] | None:
        """See ``Stepping``."""
        if self.reference is None:
            return None
        return gather(self.reference, samples, self._budget, self._device).log_pi

    def _tuned(self, settings: OptimizerSettings) -> Optimizers:
        """The optimizer for the next update; a fresh one when there is none yet or another kind is asked for."""
        muon = settings.muon_lr > 0
        if self.optimizers is None or self.optimizers.muon != muon:
            self.optimizers = Optimizers(self.model, muon=muon)
        self.optimizers.tune(settings)
        return self.optimizers

    def update(self, update: Update, totals: Totals, optimizer: OptimizerSettings, sums: Sums) -> None:
        """See ``Stepping``."""
        optimizers = self._tuned(optimizer)
        optimizers.zero_grad()

        def accumulate(members: Sequence[int]) -> float:
            return self._accumulate(update, members, totals, sums)

        if apart(update):
            gradients = ModelGradients(self.model)
            loss, reported = domain_by_domain(update, totals, accumulate, gradients, self.balance)
        else:
            loss, reported = accumulate(update.members), {}
        loss += update.made.loss
        norm = float(nn.utils.clip_grad_norm_(self.model.parameters(), optimizer.max_grad_norm))
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
