"""The torch engine: one process, one policy, AdamW, packed micro-batches.

A step is one or more updates. An update lays out all its samples, counts their tokens and sequences (the *global* denominators),
then runs micro-batch after micro-batch, each adding its share of the loss: the result does not depend on how the batch was cut.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from temper.runtime.errors import Rejected
from temper.trainer.algorithms.base import Algorithm, Settings, Totals
from temper.trainer.algorithms.targets import Measured, Needs
from temper.trainer.engine.base import EngineState, NamedTensor, OptimizerSettings, PhaseStart, StepOutcome
from temper.trainer.engine.torch import storage
from temper.trainer.engine.torch.forward import gather, micro_batches, predict
from temper.trainer.engine.torch.model import Decoder, parse_config
from temper.trainer.engine.torch.optimizers import Optimizers
from temper.trainer.engine.torch.sums import Sums
from temper.trainer.engine.torch.updates import (
    Made,
    Update,
    adapted,
    by_sample,
    measured,
    token_batch,
    updates,
)
from temper.trainer.samples import Batch, Sample

DEFAULT_MICRO_BATCH = 2048  # tokens: more only costs memory at the sizes a CPU trains
WEIGHTS, OPTIMIZER = "weights.safetensors", "optimizer.safetensors"
REFERENCE, HEAD = "reference.safetensors", "head.safetensors"


class TorchEngine:
    """``Engine`` on torch. Not thread-safe: one call at a time."""

    def __init__(self, *, device: str = "cpu", micro_batch_tokens: int = 0) -> None:
        self._device = torch.device(device)
        self._budget = micro_batch_tokens or DEFAULT_MICRO_BATCH
        self._generator = torch.Generator()
        self._model: Decoder | None = None
        self._optimizers: Optimizers | None = None
        self._reference: Decoder | None = None
        self._beta = 0.0

    @property
    def name(self) -> str:
        """Vendor, build and numeric mode."""
        return f"torch/{torch.__version__} fp32"

    @property
    def model(self) -> Decoder:
        """The policy. Raises Rejected before build, load or restore."""
        if self._model is None:
            raise Rejected("the engine holds no policy yet", hint="call build, load or restore first")
        return self._model

    def _tuned(self, settings: OptimizerSettings) -> Optimizers:
        """The optimizer for the next step; a fresh one when there is none yet or another kind is asked for."""
        muon = settings.muon_lr > 0
        if self._optimizers is None or self._optimizers.muon != muon:
            self._optimizers = Optimizers(self.model, muon=muon)
        self._optimizers.tune(settings)
        return self._optimizers

    # ------------------------------------------------------------- weights in and out

    def build(self, config: Mapping[str, Any], *, seed: int) -> None:
        """See ``Engine``."""
        self._adopt(config)
        self._generator.manual_seed(seed)
        self.model.cpu().initialise(self._generator)
        self.model.to(self._device)

    def load(self, config: Mapping[str, Any], weights: Sequence[bytes]) -> None:
        """See ``Engine``."""
        self._adopt(config)
        storage.assign(self.model, weights, tied=self.model.cfg.tied)

    def _adopt(self, config: Mapping[str, Any]) -> None:
        self._model = Decoder(parse_config(dict(config))).to(self._device)
        self._optimizers, self._reference, self._beta = None, None, 0.0

    def export(self) -> Iterator[NamedTensor]:
        """See ``Engine``."""
        return storage.export(self.model, tied=self.model.cfg.tied)

    def begin(self, phase: PhaseStart) -> None:
        """See ``Engine``."""
        needs = phase.needs
        self._beta, self._reference = phase.kl_beta, None
        if needs.reference:
            self._freeze([storage.encode(self._weights())] if phase.teacher is None else phase.teacher)
        self.model.value_head = None
        if needs.head:
            self.model.grow_head()
        self._optimizers = None

    def _freeze(self, weights: Sequence[bytes]) -> None:
        reference = Decoder(self.model.cfg).to(self._device)
        storage.assign(reference, weights, tied=self.model.cfg.tied)
        self._reference = reference.requires_grad_(requires_grad=False)

    def _weights(self) -> dict[str, Tensor]:
        return storage.named_weights(self.model, tied=self.model.cfg.tied)

    def snapshot(self) -> EngineState:
        """See ``Engine``."""
        tied = self.model.cfg.tied
        parts = {
            WEIGHTS: self._weights(),
            OPTIMIZER: self._optimizers.tensors() if self._optimizers is not None else {},
            REFERENCE: storage.named_weights(self._reference, tied=tied) if self._reference else {},
            HEAD: storage.head_weights(self.model),
        }
        rng = self._generator.get_state().numpy().tobytes().hex()
        return EngineState(
            {name: storage.encode(part) for name, part in parts.items() if part},
            {"rng": rng, "engine": self.name, "kl_beta": self._beta},
        )

    def restore(self, config: Mapping[str, Any], state: EngineState) -> None:
        """See ``Engine``."""
        self.load(config, [state.files[WEIGHTS]])
        self._beta = float(state.facts.get("kl_beta", 0.0))
        if REFERENCE in state.files:
            self._freeze([state.files[REFERENCE]])
        if HEAD in state.files:
            self.model.grow_head()
            storage.assign_head(self.model, state.files[HEAD])
        if OPTIMIZER in state.files:
            named = storage.decode(state.files[OPTIMIZER], what=OPTIMIZER)
            self._optimizers = Optimizers.restored(self.model, named)
        raw = bytearray.fromhex(str(state.facts["rng"]))
        self._generator.set_state(torch.frombuffer(raw, dtype=torch.uint8))

    # ------------------------------------------------------------- forward

    def logprobs(self, samples: Sequence[Sample]) -> list[NDArray[np.float32]]:
        """See ``Engine``."""
        out = [np.zeros(sample.ids.size, dtype=np.float32) for sample in samples]
        acting = [i for i, sample in enumerate(samples) if sample.actions]
        found = gather(self.model, [samples[i] for i in acting], self._budget, self._device)
        for i, logp in zip(acting, found.log_pi, strict=True):
            out[i][samples[i].mask] = logp
        return out

    def _measure(self, batch: Batch, members: Sequence[int], needs: Needs) -> Measured:
        """What ``prepare`` may want to know about some samples, under the weights as they are."""
        samples = [batch.samples[i] for i in members]
        found = gather(self.model, samples, self._budget, self._device, needs)
        return measured(batch, members, found, self._reference_logprobs(samples), self._beta)

    def _reference_logprobs(self, samples: Sequence[Sample]) -> list[NDArray[np.float32]] | None:
        """log π_ref of the action tokens of each sample; None without a reference."""
        if self._reference is None:
            return None
        return gather(self._reference, samples, self._budget, self._device).log_pi

    # ------------------------------------------------------------- step

    def step(
        self, batch: Batch, algorithm: Algorithm, settings: Settings, optimizer: OptimizerSettings
    ) -> StepOutcome:
        """See ``Engine``."""
        chosen = batch.trainable()
        sums = Sums()
        if not chosen:
            return StepOutcome({"loss": 0.0, "lr": optimizer.lr}, 0, 0, skipped="no valid action tokens")
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
        skipped = sums.skipped[0] if len(sums.skipped) == len(plan) else ""
        metrics = sums.report(optimizer.lr)
        if needs.reference and "kl_ref" in metrics:
            metrics["kl_beta"] = self._beta
            self._beta = adapted(self._beta, metrics["kl_ref"], settings)
        return StepOutcome(metrics, sums.tokens, sums.total_tokens, skipped)

    def _ready(self, algorithm: Algorithm, settings: Settings) -> Needs:
        """What the algorithm needs is there: a phase that was not begun would train against nothing."""
        needs = algorithm.needs(settings)
        if needs.reference and self._reference is None:
            raise Rejected(f"{algorithm.name} needs a reference", hint="begin the phase first")
        if needs.head:
            self.model.grow_head()
        return needs

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
        old = gather(self.model, samples, self._budget, self._device).log_pi if several else None
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
        loss = update.made.loss
        for order, packed in micro_batches(samples, self._budget):
            found = predict(self.model, packed, self._device, update.needs)
            members = [update.members[k] for k in order]
            tokens = token_batch(update, members, packed, found, totals, self._beta)
            terms = update.algorithm.loss(tokens, update.settings)
            share: Any = terms.loss
            share.backward()
            loss += float(share.item())
            sums.add(terms)
            sums.total_tokens += packed.tokens
        norm = float(nn.utils.clip_grad_norm_(self.model.parameters(), max_grad_norm))
        sums.close(totals.tokens, loss, norm, update.made.metrics)
        if math.isfinite(norm) and math.isfinite(loss):
            optimizers.step()
