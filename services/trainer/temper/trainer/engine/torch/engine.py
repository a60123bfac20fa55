"""The torch engine: one process, one policy, AdamW, packed micro-batches.

A step is one or more updates. An update lays out all its samples, counts their tokens and sequences (the *global* denominators),
then runs micro-batch after micro-batch, each adding its share of the loss: the result does not depend on how the batch was cut.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from temper.runtime.errors import Rejected
from temper.trainer.algorithms.base import Algorithm, LossTerms, Settings, TokenBatch, Totals
from temper.trainer.engine.base import EngineState, NamedTensor, OptimizerSettings, StepOutcome
from temper.trainer.engine.torch import storage
from temper.trainer.engine.torch.model import Decoder, parse_config
from temper.trainer.engine.torch.optimizers import Optimizers
from temper.trainer.engine.torch.packing import Packed, Tree, pack, rows, trees
from temper.trainer.samples import Batch, Sample

DEFAULT_MICRO_BATCH = 2048  # tokens: more only costs memory at the sizes a CPU trains
ROW_TOKENS = (
    256  # short rows keep attention's quadratic mask small; a longer sequence gets a row of its own length
)
WEIGHTS, OPTIMIZER = "weights.safetensors", "optimizer.safetensors"


@dataclass(slots=True)
class _Sums:
    """Running totals of one step."""

    loss: float = 0.0
    grad_norm: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    maxima: dict[str, float] = field(default_factory=dict[str, float])
    tokens: int = 0
    total_tokens: int = 0
    updates: int = 0
    skipped: list[str] = field(default_factory=list[str])

    def add(self, terms: LossTerms) -> None:
        for name, value in terms.sums.items():
            self.metrics[name] = self.metrics.get(name, 0.0) + float(value.item())
        for name, value in terms.maxima.items():
            self.maxima[name] = max(self.maxima.get(name, 0.0), float(value.item()))


class TorchEngine:
    """``Engine`` on torch. Not thread-safe: one call at a time."""

    def __init__(self, *, device: str = "cpu", micro_batch_tokens: int = 0) -> None:
        self._device = torch.device(device)
        self._budget = micro_batch_tokens or DEFAULT_MICRO_BATCH
        self._generator = torch.Generator()
        self._model: Decoder | None = None
        self._optimizers: Optimizers | None = None

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
        self._optimizers = None

    def export(self) -> Iterator[NamedTensor]:
        """See ``Engine``."""
        return storage.export(self.model, tied=self.model.cfg.tied)

    def reset_optimizer(self) -> None:
        """See ``Engine``."""
        self._optimizers = None

    def snapshot(self) -> EngineState:
        """See ``Engine``."""
        weights = storage.named_weights(self.model, tied=self.model.cfg.tied)
        optimizer = self._optimizers.tensors() if self._optimizers is not None else {}
        files = {WEIGHTS: storage.encode(weights)}
        if optimizer:
            files[OPTIMIZER] = storage.encode(optimizer)
        return EngineState(
            files, {"rng": self._generator.get_state().numpy().tobytes().hex(), "engine": self.name}
        )

    def restore(self, config: Mapping[str, Any], state: EngineState) -> None:
        """See ``Engine``."""
        self.load(config, [state.files[WEIGHTS]])
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
        with torch.no_grad():
            for order, packed in self._micro_batches([samples[i] for i in acting]):
                values, _ = self._predict(packed)
                found = np.split(values.cpu().numpy(), np.cumsum(packed.lengths.long().numpy())[:-1])
                for k, logp in zip(order, found, strict=True):
                    out[acting[k]][samples[acting[k]].mask] = logp
        return out

    def _micro_batches(self, samples: Sequence[Sample]) -> Iterator[tuple[list[int], Packed]]:
        """Packed micro-batches and, for each, the samples in it in order."""
        if not samples:
            return
        capacity = max(ROW_TOKENS, *(sample.ids.size for sample in samples))
        layout = rows(trees(samples, capacity), capacity)
        per_batch = max(1, self._budget // capacity)
        for start in range(0, len(layout), per_batch):
            part = layout[start : start + per_batch]
            yield _order(part), pack(samples, part)

    def _predict(self, packed: Packed) -> tuple[Tensor, Tensor]:
        """[action] log π and entropy, from unscaled logits in fp32."""
        device = self._device
        hidden = self.model.hidden(packed.ids.to(device), packed.positions.to(device), packed.mask.to(device))
        logits = self.model.lm_head(hidden.flatten(0, 1)[packed.where.to(device)]).float()
        log_probs = logits.log_softmax(dim=-1)
        entropy = -(log_probs.exp() * log_probs).sum(dim=-1)
        return log_probs.gather(1, packed.target.to(device)[:, None])[:, 0], entropy

    # ------------------------------------------------------------- step

    def step(
        self, batch: Batch, algorithm: Algorithm, settings: Settings, optimizer: OptimizerSettings
    ) -> StepOutcome:
        """See ``Engine``."""
        chosen = batch.trainable()
        sums = _Sums()
        if not chosen:
            return StepOutcome({"loss": 0.0, "lr": optimizer.lr}, 0, 0, skipped="no valid action tokens")
        applied = self._tuned(optimizer)
        plan = _updates(batch, chosen, int(settings["mini_batches"]), int(settings["epochs"]))
        old = self._old(batch, chosen, needed=algorithm.needs_reward and len(plan) > 1)
        for members in plan:
            self._update(
                _Update(batch, members, old, algorithm, settings), applied, optimizer.max_grad_norm, sums
            )
        skipped = sums.skipped[0] if len(sums.skipped) == len(plan) else ""
        return StepOutcome(_report(sums, optimizer.lr), sums.tokens, sums.total_tokens, skipped)

    def _old(self, batch: Batch, chosen: Sequence[int], *, needed: bool) -> dict[int, NDArray[np.float32]]:
        """log π_old by sample where later updates of the step need it; the first update is its own π_old."""
        if not needed:
            return {}
        found = self.logprobs([batch.samples[i] for i in chosen])
        return {i: logp[batch.samples[i].mask] for i, logp in zip(chosen, found, strict=True)}

    def _update(self, update: "_Update", optimizers: Optimizers, max_grad_norm: float, sums: _Sums) -> None:
        """Forward, backward and one optimizer step over all micro-batches of an update."""
        samples = [update.batch.samples[i] for i in update.members]
        totals = Totals(tokens=sum(sample.actions for sample in samples), sequences=len(samples))
        optimizers.zero_grad()
        loss = 0.0
        for order, packed in self._micro_batches(samples):
            tokens = self._tokens(update, [update.members[k] for k in order], packed, totals)
            terms = update.algorithm.loss(tokens, update.settings)
            share: Any = terms.loss
            share.backward()
            loss += float(share.item())
            sums.add(terms)
            sums.total_tokens += packed.tokens
        norm = float(nn.utils.clip_grad_norm_(self.model.parameters(), max_grad_norm))
        sums.tokens += totals.tokens
        sums.updates += 1
        sums.loss += loss
        if not (math.isfinite(norm) and math.isfinite(loss)):
            sums.skipped.append(f"non-finite gradient (loss {loss:g}, norm {norm:g})")
            return
        sums.grad_norm += norm
        optimizers.step()

    def _tokens(
        self, update: "_Update", members: Sequence[int], packed: Packed, totals: Totals
    ) -> TokenBatch:
        log_pi, entropy = self._predict(packed)
        samples = [update.batch.samples[i] for i in members]
        advantage = np.repeat(update.batch.advantages[list(members)], [sample.actions for sample in samples])
        log_old = self._flat([update.old[i] for i in members]) if update.old else log_pi.detach()
        return TokenBatch(
            log_pi=log_pi,
            log_old=log_old,
            log_mu=self._flat([sample.logprobs[sample.mask] for sample in samples]),
            entropy=entropy,
            advantage=torch.from_numpy(advantage.astype(np.float32)).to(self._device),
            sequence=packed.sequence.to(self._device),
            lengths=packed.lengths.to(self._device),
            totals=totals,
        )

    def _flat(self, parts: Sequence[NDArray[np.float32]]) -> Tensor:
        return torch.from_numpy(np.concatenate(parts)).to(self._device)


@dataclass(frozen=True, slots=True)
class _Update:
    """One optimizer update of a step."""

    batch: Batch
    members: Sequence[int]
    """Indices into ``batch.samples``."""
    old: Mapping[int, NDArray[np.float32]]
    algorithm: Algorithm
    settings: Settings


def _order(layout: Sequence[Sequence[Tree]]) -> list[int]:
    return [member for row in layout for tree in row for member in tree.members]


def _updates(batch: Batch, chosen: Sequence[int], mini_batches: int, epochs: int) -> list[list[int]]:
    """Members of each update: task groups dealt round-robin, so that every mini-batch sees every domain."""
    groups = sorted({batch.samples[i].group for i in chosen})
    cuts = min(mini_batches, len(groups))
    parts = [set(groups[k::cuts]) for k in range(cuts)]
    return [[i for i in chosen if batch.samples[i].group in part] for part in parts] * epochs


def _report(sums: _Sums, lr: float) -> dict[str, float]:
    """Means over tokens; effective sample size and χ² of rho = π_old/μ where the algorithm reports rho.

    ``kl`` estimates KL(μ ‖ π_old) without bias: k3 on samples of μ.
    """
    count = max(1, sums.tokens)
    metrics = {name: value / count for name, value in sums.metrics.items() if not name.startswith("rho_")}
    metrics |= sums.maxima
    if sums.metrics.get("rho_square"):
        square, total = sums.metrics["rho_square"], sums.metrics["rho_sum"]
        metrics["kl"] = metrics["mismatch_k3"]
        metrics["perplexity_ratio"] = math.exp(metrics["mismatch_k1"])
        metrics["ess"] = total * total / (square * count)
        metrics["chi2"] = square / count - 1.0
    updates = max(1, sums.updates)
    metrics |= {"loss": sums.loss / updates, "grad_norm": sums.grad_norm / updates, "lr": lr}
    return metrics | {"updates": float(sums.updates - len(sums.skipped))}
