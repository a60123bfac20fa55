"""A model in the ranks, as seen from outside: put weights in, take them out, measure, make one update.

Steps are those of ``Stepping``, as in the torch engine. What the algorithm wants to know about all samples at once is measured by the ranks
and put together here; an update then goes to all ranks, which divide its rows among themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from temper.runtime.errors import Rejected
from temper.trainer.algorithms.base import Totals
from temper.trainer.algorithms.targets import NOTHING_MORE, Needs
from temper.trainer.engine.base import HEAD, OPTIMIZER, REFERENCE, WEIGHTS, OptimizerSettings
from temper.trainer.engine.megatron.group import Group
from temper.trainer.engine.megatron.layout import MegatronOptions
from temper.trainer.engine.megatron.names import MOMENTS, layer_bytes, order
from temper.trainer.engine.megatron.wire import Frame, pack_batch, pack_made, unpack_arrays
from temper.trainer.engine.torch import storage
from temper.trainer.engine.torch.forward import Gathered
from temper.trainer.engine.torch.mixture import Balance
from temper.trainer.engine.torch.model import Decoder, DecoderConfig
from temper.trainer.engine.torch.steps import Stepping
from temper.trainer.engine.torch.sums import Sums
from temper.trainer.engine.torch.updates import Update
from temper.trainer.samples import Batch, Sample

PIECE = 64 << 20
"""Bytes of weights that are asked for at once; at least one layer."""


class RemoteTrainee(Stepping):
    """One model held by a group of ranks under a name of its own."""

    def __init__(
        self,
        who: str,
        group: Group,
        options: MegatronOptions,
        budget: int,
        config: Mapping[str, Any],
        cfg: DecoderConfig,
    ) -> None:
        super().__init__()
        self._who, self._group, self._options, self._budget = who, group, options, budget
        self._config, self._cfg = config, cfg
        self._names = order(cfg)
        self._referring = False
        self._steps = 0
        self.head: tuple[str, ...] = ()
        """Parameters of the scalar head that are in use."""

    def _ask(self, op: str, blocks: Mapping[str, bytes] | None = None, **said: Any) -> list[Frame]:
        return self._group.ask(Frame({"op": op, "who": self._who, **said}, blocks or {}))

    # ------------------------------------------------------------- weights in and out

    def fill(self, files: Mapping[str, bytes]) -> None:
        """Weights, head, moments and reference of a state. Raises Rejected when files do not fit the configuration."""
        given = self._fitting([data for name, data in files.items() if name.startswith("weights")])
        paths = [self._written("weights", given)]
        if HEAD in files:
            self.head = self._head_of(files[HEAD])
            paths.append(self._written("head", files[HEAD]))
        options = asdict(self._options)
        self._ask("build", options=options, config=dict(self._config), files=paths)
        self._steps = 0
        if OPTIMIZER in files:
            moments = storage.decode(files[OPTIMIZER], what=OPTIMIZER)
            self._steps = self._remembered(moments)
            paths.append(self._written("optimizer", files[OPTIMIZER]))
        self._ask("restore", files=paths, step=self._steps)
        self._refer([files[REFERENCE]] if REFERENCE in files else [])

    def _head_of(self, data: bytes) -> tuple[str, ...]:
        """Names in a file of the scalar head. Raises Rejected when it does not fit."""
        with torch.device("meta"):
            model = Decoder(self._cfg)
        model.to_empty(device="cpu")
        storage.assign_head(model, data)
        return tuple(storage.head_weights(model))

    def _remembered(self, moments: Mapping[str, Tensor]) -> int:
        """The step count of moments that fit. A parameter without any, as the head of a reward model, was never moved."""
        if any(name.startswith("momentum/") for name in moments):
            raise Rejected("the snapshot is of Muon, the megatron engine has AdamW only", field=OPTIMIZER)
        steps = {float(value) for name, value in moments.items() if name.startswith("step/")}
        held = {name.partition("/")[2] for name in moments}
        unknown = sorted(held - {*self._names, *self.head})
        if len(steps) != 1 or unknown or not held >= {name for name in self._names if ".layers." in name}:
            raise Rejected("the snapshot's optimizer does not fit the policy", field=OPTIMIZER)
        return int(steps.pop())

    def _fitting(self, files: Sequence[bytes]) -> bytes:
        """One file of weights that fits. Raises Rejected naming what does not."""
        model = Decoder(self._cfg)
        storage.assign(model, files, tied=self._cfg.tied)
        return storage.encode(storage.named_weights(model, tied=self._cfg.tied))

    def _written(self, name: str, data: bytes) -> str:
        """A file that ranks map; it outlives the question, not the group."""
        path = self._group.folder / f"{self._who}-{name}.safetensors"
        path.unlink(missing_ok=True)  # ranks may have the old one mapped
        path.write_bytes(data)
        return str(path)

    def pieces(self) -> Iterator[tuple[int, range]]:
        """(pipeline stage, its layers) in the order of the model, of about ``PIECE`` bytes each."""
        per_stage = self._cfg.layers // self._options.pipeline_parallel
        at_once = min(per_stage, max(1, PIECE // layer_bytes(self._cfg)))
        for stage in range(self._options.pipeline_parallel):
            end = (stage + 1) * per_stage
            for first in range(stage * per_stage, end, at_once):
                yield stage, range(first, min(first + at_once, end))

    def piece(self, what: str, stage: int, layers: range) -> dict[str, Tensor]:
        """Weights of some layers, or what belongs to them, under Hugging Face names in the order of the model.

        ``weights`` as computed with, ``param`` as the optimizer keeps them, ``reference``, or a moment.
        """
        found = self._said(self._ask("piece", what=what, stage=stage, layers=[layers.start, layers.stop]))
        return {name: found[name] for name in self._names if name in found}

    def _said(self, answers: Sequence[Frame]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for answer in answers:
            if "tensors" in answer.blocks:
                found |= storage.decode(answer.blocks["tensors"], what="a rank's answer")
        return found

    def weights(self, what: str) -> dict[str, Tensor]:
        """All pieces."""
        found: dict[str, Tensor] = {}
        for piece in self.pieces():
            found |= self.piece(what, *piece)
        return found

    def head_weights(self, what: str) -> dict[str, Tensor]:
        """The scalar head or its moments; none without one."""
        found = self._said(self._ask("head", what=what)) if self.head else {}
        return {name: found[name] for name in self.head if name in found}

    def parts(self) -> dict[str, bytes]:
        """Files of a snapshot, with the names and contents of the torch engine's."""
        parts = {
            WEIGHTS: self.weights("param"),
            OPTIMIZER: self._moments(),
            REFERENCE: self.weights("reference") if self._referring else {},
            HEAD: self.head_weights("param"),
        }
        return {name: storage.encode(part) for name, part in parts.items() if part}

    def _moments(self) -> dict[str, Tensor]:
        """Moments and step counts; none before the first step."""
        if not self._steps:
            return {}
        found: dict[str, Tensor] = {}
        for kind in MOMENTS:
            named = {**self.weights(kind), **self.head_weights(kind)}
            found |= {f"{kind}/{name}": value for name, value in named.items()}
        step = torch.tensor(float(self._steps))
        return found | {f"step/{name}": step.clone() for name in (*self._names, *self.head)}

    # ------------------------------------------------------------- phases

    def forget(self, *, keep_head: bool = False) -> None:
        """Drop moments, reference, β, the balance of domains and, unless it is to be kept, the head."""
        self._ask("forget", keep_head=keep_head)
        self.beta, self.balance, self._steps = 0.0, Balance(), 0
        self.head = self.head if keep_head else ()
        self._refer([])

    def freeze(self, teacher: Sequence[bytes] | None) -> None:
        """Take a reference: a teacher's files, or the model as it is now."""
        now = [storage.encode(self.weights("param"))] if teacher is None else teacher
        self._refer(now)

    def grow_head(self, *, bias: bool) -> None:
        """Use a scalar head: zero at first, so that it disturbs nothing."""
        self.head = tuple(f"{storage.HEAD_PREFIX}{name}" for name in ("weight", *(["bias"] if bias else [])))

    def _refer(self, files: Sequence[bytes]) -> None:
        self._referring = bool(files)
        paths = [self._written("reference", self._fitting(files))] if files else []
        self._ask("reference", files=paths)

    @property
    def has_reference(self) -> bool:
        """See ``Stepping``."""
        return self._referring

    # ------------------------------------------------------------- passes

    def gather(self, samples: Sequence[Sample], needs: Needs) -> Gathered:
        """See ``Stepping``."""
        return self._gathered(samples, needs, "policy")

    def reference_logprobs(self, samples: Sequence[Sample]) -> list[NDArray[np.float32]] | None:
        """See ``Stepping``."""
        return self._gathered(samples, NOTHING_MORE, "reference").log_pi if self._referring else None

    def _gathered(self, samples: Sequence[Sample], needs: Needs, which: str) -> Gathered:
        nothing = np.zeros(0, dtype=np.float32)
        wanted = [
            "log_pi",
            "entropy",
            *(["values"] if needs.values else []),
            *(["scores"] if needs.scores else []),
        ]
        found = {name: [nothing] * len(samples) for name in wanted}
        if samples:
            header, blocks = pack_batch(Batch(samples, np.zeros(len(samples))))
            said = {"which": which, "batch": header, "budget": self._budget, "needs": asdict(needs)}
            for answer in self._ask("measure", blocks, **said):
                arrays = unpack_arrays(answer.head["arrays"], answer.blocks)
                for name, into in found.items():
                    for at, array in zip(answer.head["order"], arrays.get(name, []), strict=True):
                        into[at] = array
        scores = np.concatenate([nothing, *found["scores"]]) if needs.scores else None
        return Gathered(found["log_pi"], found["entropy"], found.get("values"), scores)

    def update(self, update: Update, totals: Totals, optimizer: OptimizerSettings, sums: Sums) -> None:
        """See ``Stepping``."""
        batch, members = update.batch, update.members
        samples = [batch.samples[i] for i in members]
        header, blocks = pack_batch(
            Batch(samples, batch.advantages[list(members)], batch.shares, batch.number, batch.version)
        )
        facts, arrays, more = pack_made(update.made, members)
        answers = self._ask(
            "update",
            blocks | more,
            algorithm=update.algorithm.name,
            params=dict(update.settings.params),
            choices=dict(update.settings.choices),
            needs=asdict(update.needs),
            progress=update.progress,
            optimizer=asdict(optimizer),
            totals=asdict(totals),
            beta=self.beta,
            balance=self.balance.facts(),
            budget=self._budget,
            batch=header,
            made=facts,
            arrays=arrays,
        )
        for answer in answers:
            _add(sums, answer.head)
        head = answers[0].head
        self._steps = int(head["step"])
        self.balance = Balance.from_facts(head["balance"])
        metrics = {**update.made.metrics, **head["reported"]}
        sums.close(totals.tokens, head["loss"] + update.made.loss, head["norm"], metrics)


def _add(sums: Sums, said: Mapping[str, Any]) -> None:
    """Count what one rank reports."""
    for name, value in said["sums"].items():
        sums.metrics[name] = sums.metrics.get(name, 0.0) + value
    for name, value in said["maxima"].items():
        sums.maxima[name] = max(sums.maxima.get(name, 0.0), value)
    sums.total_tokens += int(said["total"])
