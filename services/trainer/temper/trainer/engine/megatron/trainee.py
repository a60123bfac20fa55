"""The policy in the ranks, as seen from outside: begin a phase, measure, make one step.

A step is the same sequence of updates as the torch engine's. What the algorithm wants to know about all samples at once is measured
by the ranks and put together here; an update then goes to all ranks, which divide its rows among themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from temper.runtime.errors import Rejected
from temper.trainer.algorithms.base import Algorithm, Settings
from temper.trainer.algorithms.targets import Measured, Needs
from temper.trainer.engine.base import EngineState, OptimizerSettings, PhaseStart
from temper.trainer.engine.megatron.group import Group
from temper.trainer.engine.megatron.layout import MegatronOptions
from temper.trainer.engine.megatron.names import order
from temper.trainer.engine.megatron.wire import Frame, pack_arrays, pack_batch, unpack_arrays
from temper.trainer.engine.torch import storage
from temper.trainer.engine.torch.forward import Gathered
from temper.trainer.engine.torch.model import Decoder, parse_config
from temper.trainer.engine.torch.sums import Sums
from temper.trainer.engine.torch.updates import Made, by_sample, measured, updates
from temper.trainer.samples import Batch, Sample

OPTIMIZER, REFERENCE = "optimizer.safetensors", "reference.safetensors"
MOMENTS = ("exp_avg", "exp_avg_sq")
MADE = ("old", "reference", "advantages", "keep")


class RemoteTrainee:
    """A policy held by a group of ranks."""

    def __init__(self, group: Group, options: MegatronOptions, budget: int) -> None:
        self._group, self._options, self._budget = group, options, budget
        self._has_reference = False
        self.beta = 0.0

    # ------------------------------------------------------------- weights in and out

    def fill(self, config: Mapping[str, Any], state: EngineState) -> None:
        """Weights, moments, reference and β of a state. Raises Rejected when files do not fit the configuration."""
        self._cfg = parse_config(dict(config))
        weights = [data for name, data in state.files.items() if name.startswith("weights")]
        files = self._written("weights", self._fitting(weights))
        asked = {"op": "build", "options": asdict(self._options), "config": dict(config), "files": [files]}
        self._group.ask(Frame(asked))
        if OPTIMIZER in state.files:
            moments = storage.decode(state.files[OPTIMIZER], what=OPTIMIZER)
            self._remember(files, state.files[OPTIMIZER], moments)
        else:
            self._group.ask(Frame({"op": "restore", "files": [files], "step": 0}))
        if REFERENCE in state.files:
            self._refer([state.files[REFERENCE]])
        self.beta = float(state.facts.get("kl_beta", 0.0))

    def _remember(self, weights: str, data: bytes, moments: Mapping[str, Tensor]) -> None:
        if any(name.startswith("momentum/") for name in moments):
            raise Rejected("the snapshot is of Muon, the megatron engine has AdamW only", field=OPTIMIZER)
        steps = {float(value) for name, value in moments.items() if name.startswith("step/")}
        wanted = {f"{kind}/{name}" for kind in MOMENTS for name in order(self._cfg)}
        if len(steps) != 1 or not wanted <= moments.keys():
            raise Rejected("the snapshot's optimizer does not fit the policy", field=OPTIMIZER)
        path = self._written("optimizer", data)
        self._group.ask(Frame({"op": "restore", "files": [weights, path], "step": steps.pop()}))

    def _fitting(self, files: Sequence[bytes]) -> bytes:
        """One file of weights that fits. Raises Rejected naming what does not."""
        model = Decoder(self._cfg)
        storage.assign(model, files, tied=self._cfg.tied)
        return storage.encode(storage.named_weights(model, tied=self._cfg.tied))

    def _written(self, name: str, data: bytes) -> str:
        """A file that ranks map; it outlives the question, not the group."""
        path = self._group.folder / f"{name}.safetensors"
        path.unlink(missing_ok=True)  # ranks may have the old one mapped
        path.write_bytes(data)
        return str(path)

    def weights(self, what: str) -> dict[str, Tensor]:
        """``weights`` as published, ``param`` as the optimizer keeps them, ``reference``, or a moment."""
        found: dict[str, Tensor] = {}
        for answer in self._group.ask(Frame({"op": "fetch", "what": what})):
            if "tensors" in answer.blocks:
                found |= storage.decode(answer.blocks["tensors"], what=what)
        return {name: found[name] for name in order(self._cfg) if name in found}

    def moments(self) -> dict[str, Tensor]:
        """Moments and step counts as the torch engine names them; none before the first step."""
        found: dict[str, Tensor] = {}
        for kind in MOMENTS:
            found |= {f"{kind}/{name}": value for name, value in self.weights(kind).items()}
        if found:
            step = torch.tensor(float(self._group.ask(Frame({"op": "count"}))[0].head["step"]))
            found |= {f"step/{name}": step.clone() for name in order(self._cfg)}
        return found

    # ------------------------------------------------------------- training

    def begin(self, phase: PhaseStart) -> None:
        """Forget moments; freeze a reference where one is needed."""
        self._group.ask(Frame({"op": "forget"}))
        self.beta = phase.kl_beta
        files: Sequence[bytes] = []
        if phase.needs.reference:
            now = storage.encode(self.weights("param")) if phase.teacher is None else None
            files = [now] if now is not None else list(phase.teacher or [])
        self._refer(files)

    def _refer(self, files: Sequence[bytes]) -> None:
        self._has_reference = bool(files)
        paths = [self._written("reference", self._fitting(files))] if files else []
        self._group.ask(Frame({"op": "reference", "files": paths}))

    def measure(self, samples: Sequence[Sample], which: str = "policy") -> Gathered:
        """log π and entropy of samples that acted, by the policy or the ``reference``."""
        log_pi: list[NDArray[np.float32]] = [np.zeros(0, dtype=np.float32)] * len(samples)
        entropy = list(log_pi)
        if samples:
            header, blocks = pack_batch(Batch(samples, np.zeros(len(samples))))
            asked = {"op": "measure", "which": which, "batch": header, "budget": self._budget}
            for answer in self._group.ask(Frame(asked, blocks)):
                if not answer.head["order"]:
                    continue
                arrays = unpack_arrays(answer.head["arrays"], answer.blocks)
                for at, pi, h in zip(answer.head["order"], arrays["log_pi"], arrays["entropy"], strict=True):
                    log_pi[at], entropy[at] = pi, h
        return Gathered(log_pi, entropy, None, None)

    def step(
        self, batch: Batch, algorithm: Algorithm, settings: Settings, optimizer: OptimizerSettings
    ) -> Sums:
        """Train on what may be trained on; there must be something."""
        chosen, sums = batch.trainable(), Sums()
        needs = algorithm.needs(settings)
        if needs.reference and not self._has_reference:
            raise Rejected(f"{algorithm.name} needs a reference", hint="begin the phase first")
        plan = updates(batch, chosen, int(settings["mini_batches"]), int(settings["epochs"]))
        made = self._made(batch, chosen, algorithm, settings, several=len(plan) > 1)
        for members in plan:
            fresh = made
            if needs.targets and needs.every_update:
                found = self._measure(batch, members)
                fresh = made.aimed(members, algorithm, settings, found)
            if fresh.nothing:
                sums.skip(fresh.nothing, fresh.metrics)
                continue
            self._update(batch, members, algorithm, settings, needs, fresh, optimizer, sums)
        return sums

    def _measure(self, batch: Batch, members: Sequence[int]) -> Measured:
        samples = [batch.samples[i] for i in members]
        reference = self.measure(samples, "reference").log_pi if self._has_reference else None
        return measured(batch, members, self.measure(samples), reference, self.beta)

    def _made(
        self, batch: Batch, chosen: Sequence[int], algorithm: Algorithm, settings: Settings, *, several: bool
    ) -> Made:
        """What is fixed for the whole step, as in the torch engine."""
        needs = algorithm.needs(settings)
        if needs.targets and not needs.every_update:
            first = self._measure(batch, chosen)
            return Made.of(chosen, first, several=several).aimed(chosen, algorithm, settings, first)
        samples = [batch.samples[i] for i in chosen]
        old = self.measure(samples).log_pi if several and algorithm.needs_reward else None
        reference = self.measure(samples, "reference").log_pi if needs.reference else None
        return Made(old=by_sample(chosen, old), reference=by_sample(chosen, reference))

    def _update(
        self,
        batch: Batch,
        members: Sequence[int],
        algorithm: Algorithm,
        settings: Settings,
        needs: Needs,
        made: Made,
        optimizer: OptimizerSettings,
        sums: Sums,
    ) -> None:
        samples = [batch.samples[i] for i in members]
        tokens = sum(sample.actions for sample in samples)
        header, blocks = pack_batch(Batch(samples, batch.advantages[list(members)], number=batch.number))
        given: dict[str, Mapping[int, NDArray[Any]]] = {name: getattr(made, name) for name in MADE}
        arrays, more = pack_arrays({name: [by[i] for i in members] for name, by in given.items() if by})
        asked = {
            "op": "update",
            "algorithm": algorithm.name,
            "params": dict(settings.params),
            "choices": dict(settings.choices),
            "needs": asdict(needs),
            "optimizer": asdict(optimizer),
            "totals": {"tokens": tokens, "sequences": len(samples)},
            "beta": self.beta,
            "budget": self._budget,
            "loss": made.loss,
            "batch": header,
            "made": arrays,
        }
        answers = self._group.ask(Frame(asked, blocks | more))
        for answer in answers:
            _add(sums, answer.head)
        head = answers[0].head
        sums.close(tokens, head["loss"] + made.loss, head["norm"], made.metrics)


def _add(sums: Sums, said: Mapping[str, Any]) -> None:
    """Count what one rank reports."""
    for name, value in said["sums"].items():
        sums.metrics[name] = sums.metrics.get(name, 0.0) + value
    for name, value in said["maxima"].items():
        sums.maxima[name] = max(sums.maxima.get(name, 0.0), value)
    sums.total_tokens += int(said["total"])
