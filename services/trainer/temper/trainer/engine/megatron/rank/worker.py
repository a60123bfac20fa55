"""One rank: a part of the policy, its optimizer, and the questions it answers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Self

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.module import Float16Module
from safetensors import safe_open
from torch import Tensor, nn

from temper.trainer.algorithms import algorithm
from temper.trainer.algorithms.base import LossTerms, Settings, Totals
from temper.trainer.algorithms.targets import Needs
from temper.trainer.engine.megatron.layout import MegatronOptions
from temper.trainer.engine.megatron.names import Slot, part, slots, whole
from temper.trainer.engine.megatron.rank.forward import Micro, micro_batches, run
from temper.trainer.engine.megatron.rank.moments import MOMENTS, Moments
from temper.trainer.engine.megatron.rank.policy import Policy, _finalize
from temper.trainer.engine.megatron.wire import Frame, pack_arrays, unpack_arrays, unpack_batch
from temper.trainer.engine.torch.forward import Prediction
from temper.trainer.engine.torch.model import parse_config
from temper.trainer.engine.torch.storage import encode
from temper.trainer.engine.torch.sums import Sums
from temper.trainer.engine.torch.updates import Made, Update, token_batch

MADE = ("old", "reference", "advantages", "keep")
"""Arrays of ``Made`` that this engine's algorithms use."""


class Worker:
    """Answers of one rank. Every question comes to all ranks, in one order."""

    def __init__(self, rank: int, ranks: int, rendezvous: str, deadline_s: float) -> None:
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
        self._laid: MegatronOptions | None = None
        self._reference: Policy | None = None
        self._steps = 0

    def _lay(self, options: MegatronOptions) -> None:
        """Take a place in a layout. The processes stay when it changes."""
        self._options = options
        if self._laid == options:
            return
        parallel_state.destroy_model_parallel()
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=options.tensor_parallel,
            pipeline_model_parallel_size=options.pipeline_parallel,
            distributed_timeout_minutes=self._deadline_min,
        )
        model_parallel_cuda_manual_seed(1, force_reset_rng=True)
        self._tensor_rank = parallel_state.get_tensor_model_parallel_rank()
        self._last = parallel_state.is_pipeline_last_stage()
        self._speaks = self._last and self._tensor_rank == 0
        self._laid = options

    def answer(self, frame: Frame) -> Frame:
        """Do what a frame asks."""
        match frame.head["op"]:
            case "build":
                return self._build(frame.head)
            case "reference":
                return self._refer(frame.head)
            case "forget":
                return self._forget()
            case "measure":
                return self._measure(frame)
            case "update":
                return self._update(frame)
            case "restore":
                return self._restore(frame.head)
            case "fetch":
                return self._fetch(frame.head)
            case "count":
                return Frame({"step": self._steps})
            case other:
                raise ValueError(f"unknown question {other!r}")

    # ------------------------------------------------------------- weights in and out

    def _build(self, head: Mapping[str, Any]) -> Frame:
        self._lay(MegatronOptions(**head["options"]))
        self._cfg = parse_config(dict(head["config"]))
        self._reference, self._steps = None, 0
        self._policy = self._model(head["files"])
        self._wrapped: nn.Module = DistributedDataParallel(
            self._policy.config,
            DistributedDataParallelConfig(
                grad_reduce_in_fp32=True, use_distributed_optimizer=self._options.distributed_optimizer
            ),
            self._half(self._policy),
        )
        self._settings = OptimizerConfig(
            optimizer="adam",
            lr=0.0,
            weight_decay=0.0,
            bf16=self._options.precision == "bf16",
            params_dtype=self._policy.config.params_dtype,
            use_distributed_optimizer=self._options.distributed_optimizer,
        )
        self._optimizer: Any = get_megatron_optimizer(
            self._settings, [self._wrapped], config_overrides={}, use_gloo_process_groups=False
        )
        self._moments = Moments(self._optimizer)
        return Frame({})

    def _half(self, model: Policy) -> nn.Module:
        return Float16Module(model.config, model) if self._options.precision == "bf16" else model

    def _model(self, files: list[str]) -> Policy:
        """A model on this rank's device with its part of the weights."""
        model = Policy(self._cfg, self._options).to(self._device, _dtype(self._options))
        params = dict(model.named_parameters())
        with Files(files) as given, torch.no_grad():
            for slot in self._slots():
                params[slot.name].copy_(part(slot, given.get, self._cfg, *self._place()))
                # what norms and clipping count once per part, not once per copy
                vars(params[slot.name])["tensor_model_parallel"] = slot.kind != "same"
        return model

    def _place(self) -> tuple[int, int]:
        return self._tensor_rank, self._options.tensor_parallel

    def _slots(self) -> list[Slot]:
        """Slots of this rank's pipeline stage."""
        stage, per_stage = (
            parallel_state.get_pipeline_model_parallel_rank(),
            self._cfg.layers // self._options.pipeline_parallel,
        )
        layers = range(stage * per_stage, (stage + 1) * per_stage)
        return list(slots(self._cfg, layers, first=stage == 0, last=self._last))

    def _refer(self, head: Mapping[str, Any]) -> Frame:
        self._reference = self._model(head["files"]) if head["files"] else None
        if self._reference is not None:
            self._reference.requires_grad_(requires_grad=False)
        return Frame({})

    def _forget(self) -> Frame:
        self._moments.forget()
        self._steps = 0
        return Frame({})

    def _restore(self, head: Mapping[str, Any]) -> Frame:
        """Master weights, and moments where there are any."""
        params = dict(self._policy.named_parameters())
        step = float(head["step"])
        kinds = {"param": "", **({} if not step else {kind: f"{kind}/" for kind in MOMENTS})}
        with Files(head["files"]) as given:
            for slot in self._slots():
                for kind, prefix in kinds.items():
                    value = part(slot, given.under(prefix), self._cfg, *self._place())
                    self._moments.write(params[slot.name], kind, value, step)
        self._steps = int(step)
        return Frame({})

    def _fetch(self, head: Mapping[str, Any]) -> Frame:
        """Tensors of one kind under their Hugging Face names, from one rank of each stage."""
        what, group = str(head["what"]), parallel_state.get_tensor_model_parallel_group()
        model = self._reference if what == "reference" else self._policy
        if model is None or (what in MOMENTS and not self._steps):
            return Frame({})
        params = dict(model.named_parameters())
        found: dict[str, Tensor] = {}
        for slot in self._slots():
            param = params[slot.name].detach()
            own = self._moments.read(params[slot.name], what) if what in (*MOMENTS, "param") else param
            shards = [torch.empty_like(own) for _ in range(self._options.tensor_parallel)]
            torch.distributed.all_gather(shards, own.contiguous(), group=group)
            found |= whole(slot, shards, self._cfg)
        if self._tensor_rank or parallel_state.get_data_parallel_rank():
            return Frame({})
        return Frame({}, {"tensors": encode({name: t.cpu() for name, t in found.items()})})

    # ------------------------------------------------------------- passes

    def _measure(self, frame: Frame) -> Frame:
        """log π and entropy of the rows that are this copy's."""
        batch = unpack_batch(frame.head["batch"], frame.blocks)
        of_reference = frame.head["which"] == "reference"
        model = self._reference if of_reference else self._policy
        assert model is not None, "a reference is made when a phase begins"
        micros = micro_batches(batch.samples, int(frame.head["budget"]))
        with torch.no_grad():
            found = run(model, model, micros, None) if micros else []
        if not self._speaks:
            return Frame({"order": []})
        order: list[int] = []
        log_pi: list[Any] = []
        entropy: list[Any] = []
        for micro, said in found:
            cuts = torch.as_tensor(micro.packed.lengths).long().tolist()
            order += micro.order
            log_pi += [each.numpy() for each in said.log_pi.float().cpu().split(cuts)]
            entropy += [each.numpy() for each in said.entropy.float().cpu().split(cuts)]
        header, blocks = pack_arrays({"log_pi": log_pi, "entropy": entropy})
        return Frame({"order": order, "arrays": header}, blocks)

    def _update(self, frame: Frame) -> Frame:
        """Forward, backward, and an optimizer step where everything is finite."""
        head = frame.head
        update, totals = _asked(frame), Totals(**head["totals"])
        micros = micro_batches(update.batch.samples, int(head["budget"]))
        sums, local = Sums(), 0.0

        def share(micro: Micro, found: Prediction) -> tuple[Tensor, float]:
            tokens = token_batch(update, micro.order, micro.packed, found, totals, float(head["beta"]))
            terms: LossTerms = update.algorithm.loss(tokens, update.settings)
            if self._speaks:
                sums.add(terms)
            loss: Any = terms.loss
            return loss, float(loss.detach())

        wrapped: Any = self._wrapped
        wrapped.zero_grad_buffer()
        self._optimizer.zero_grad()  # a parameter's own gradient is an alias of the buffer after a step
        if micros:
            local = math.fsum(run(self._wrapped, self._policy, micros, share))
        else:
            _finalize([self._wrapped])
        loss = self._agreed(local)
        norm = self._apply(head["optimizer"], loss + float(head["loss"]))
        total = sum(micro.packed.tokens for micro in micros) if self._speaks else 0
        return Frame(
            {"loss": loss, "norm": norm, "sums": sums.metrics, "maxima": sums.maxima, "total": total}
        )

    def _agreed(self, local: float) -> float:
        """The loss of all copies, known to all ranks."""
        found = torch.tensor([local if self._speaks else 0.0], dtype=torch.float64, device=self._device)
        torch.distributed.all_reduce(found)
        return float(found.item())

    def _apply(self, said: Mapping[str, Any], loss: float) -> float:
        """Clip and step; weights stay as they are where loss or norm is not finite. The norm."""
        self._moments.tune(said)
        self._optimizer.prepare_grads()
        norm = float(self._optimizer.get_grad_norm())
        if math.isfinite(norm) and math.isfinite(loss):
            clip_grad_by_total_norm_fp32(self._optimizer.get_parameters(), said["max_grad_norm"], norm)
            self._optimizer.step_with_ready_grads()
            self._steps += 1
        return norm


class Files:
    """Safetensors files, mapped: a tensor is read when it is asked for."""

    def __init__(self, paths: list[str]) -> None:
        self._open: list[Any] = [safe_open(path, framework="pt") for path in paths]
        self._at = {name: each for each in self._open for name in each.keys()}  # noqa: SIM118 - no mapping

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.clear()
        self._at.clear()

    def get(self, name: str) -> Tensor:
        """One tensor."""
        return self._at[name].get_tensor(name)

    def under(self, prefix: str) -> Any:
        """``get`` for names behind a prefix."""
        return lambda name: self.get(prefix + name)


def _dtype(options: MegatronOptions) -> torch.dtype:
    return torch.bfloat16 if options.precision == "bf16" else torch.float32


def _asked(frame: Frame) -> Update:
    """The update of a frame: its batch holds the update's samples and no others."""
    head = frame.head
    batch = unpack_batch(head["batch"], frame.blocks)
    arrays = unpack_arrays(head["made"], frame.blocks)
    by_name = {name: dict(enumerate(arrays.get(name, []))) for name in MADE}
    made = Made(
        old=by_name["old"],
        reference=by_name["reference"],
        advantages=by_name["advantages"],
        keep=by_name["keep"],
    )
    settings = Settings(head["params"], head["choices"])
    members = range(len(batch.samples))
    return Update(batch, members, algorithm(head["algorithm"]), settings, Needs(**head["needs"]), made)
