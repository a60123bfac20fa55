"""One rank: its place in a layout, the models it holds parts of, and the questions it answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

from temper.trainer.algorithms import algorithm
from temper.trainer.algorithms.base import Settings, Totals
from temper.trainer.algorithms.targets import Needs
from temper.trainer.engine.megatron.layout import MegatronOptions
from temper.trainer.engine.megatron.rank.place import Place
from temper.trainer.engine.megatron.rank.trainee import RankTrainee, deal
from temper.trainer.engine.megatron.wire import Frame, pack_arrays, unpack_arrays, unpack_batch, unpack_made
from temper.trainer.engine.torch.mixture import Balance
from temper.trainer.engine.torch.model import parse_config
from temper.trainer.engine.torch.storage import encode
from temper.trainer.engine.torch.updates import Update


class Worker:
    """Answers of one rank. Every question comes to all ranks, in one order."""

    def __init__(
        self, rank: int, ranks: int, rendezvous: str, deadline_s: float, beat: Callable[[], None]
    ) -> None:
        """Join the others. ``beat`` is called whenever the rank has come a step further."""
        cuda = torch.cuda.is_available()
        self._device = torch.device("cuda", rank % torch.cuda.device_count()) if cuda else torch.device("cpu")
        if cuda:
            torch.cuda.set_device(self._device)
        torch.distributed.init_process_group(
            "nccl" if cuda else "gloo",
            init_method=f"file://{rendezvous}",
            rank=rank,
            world_size=ranks,
            timeout=timedelta(seconds=deadline_s),
        )
        self._deadline_min = max(1, math.ceil(deadline_s / 60))
        self._beat = beat
        self._place: Place | None = None
        self._trainees: dict[str, RankTrainee] = {}

    def _lay(self, options: MegatronOptions) -> Place:
        """Take a place in a layout. The processes stay when it changes."""
        if self._place is None or self._place.options != options:
            self._trainees.clear()
            parallel_state.destroy_model_parallel()
            parallel_state.initialize_model_parallel(
                tensor_model_parallel_size=options.tensor_parallel,
                pipeline_model_parallel_size=options.pipeline_parallel,
                context_parallel_size=options.context_parallel,
                distributed_timeout_minutes=self._deadline_min,
            )
            model_parallel_cuda_manual_seed(1, force_reset_rng=True)
            self._place = Place.here(options)
        return self._place

    def answer(self, frame: Frame) -> Frame:
        """Do what a frame asks."""
        head = frame.head
        if head["op"] == "build":
            return self._build(head)
        if head["op"] == "clear":
            self._trainees.clear()
            return Frame({})
        trainee = self._trainees[head["who"]]
        match head["op"]:
            case "reference":
                trainee.refer(head["files"])
            case "forget":
                trainee.forget(keep_head=head["keep_head"])
            case "restore":
                trainee.restore(head["files"], int(head["step"]))
            case "piece":
                return _tensors(trainee.piece(head["what"], head["stage"], range(*head["layers"])))
            case "head":
                return _tensors(trainee.head(head["what"]))
            case "measure":
                return _measured(trainee, frame)
            case "update":
                return _updated(trainee, frame)
            case other:
                raise ValueError(f"unknown question {other!r}")
        return Frame({})

    def _build(self, head: Mapping[str, Any]) -> Frame:
        place = self._lay(MegatronOptions(**head["options"]))
        self._trainees.pop(head["who"], None)  # its memory first
        cfg = parse_config(dict(head["config"]))
        self._trainees[head["who"]] = RankTrainee(cfg, place, head["files"], self._device, self._beat)
        return Frame({})


def _tensors(found: Mapping[str, torch.Tensor]) -> Frame:
    return Frame({}, {"tensors": encode(found)} if found else {})


def _measured(trainee: RankTrainee, frame: Frame) -> Frame:
    """log π, entropy and whatever else is asked of the rows that are this copy's."""
    head = frame.head
    batch = unpack_batch(head["batch"], frame.blocks)
    of_reference = head["which"] == "reference"
    found = trainee.measure(
        batch.samples, int(head["budget"]), Needs(**head["needs"]), of_reference=of_reference
    )
    order, arrays = deal(found)
    header, blocks = pack_arrays(arrays)
    return Frame({"order": order, "arrays": header}, blocks)


def _updated(trainee: RankTrainee, frame: Frame) -> Frame:
    """One update: its batch holds its samples and no others."""
    head = frame.head
    batch = unpack_batch(head["batch"], frame.blocks)
    made = unpack_made(head["made"], unpack_arrays(head["arrays"], frame.blocks))
    settings = Settings(head["params"], head["choices"])
    members = range(len(batch.samples))
    update = Update(
        batch, members, algorithm(head["algorithm"]), settings, Needs(**head["needs"]), made, head["progress"]
    )
    balance = Balance.from_facts(head["balance"])
    loss, norm, sums, reported = trainee.update(update, Totals(**head["totals"]), head, balance)
    return Frame(
        {
            "loss": loss,
            "norm": norm,
            "sums": sums.metrics,
            "maxima": sums.maxima,
            "total": sums.total_tokens,
            "reported": reported,
            "balance": balance.facts(),
            "step": trainee.steps,
        }
    )
