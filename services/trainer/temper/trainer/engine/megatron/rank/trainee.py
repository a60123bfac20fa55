"""A rank's part of one model that is being trained: weights, optimizer, reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32
from megatron.core.transformer.module import Float16Module
from torch import Tensor

from temper.trainer.algorithms.base import LossTerms, Totals
from temper.trainer.algorithms.targets import NOTHING_MORE, Needs
from temper.trainer.engine.megatron.names import MOMENTS, Slot, part, whole
from temper.trainer.engine.megatron.rank.files import Files
from temper.trainer.engine.megatron.rank.forward import Micro, micro_batches, run
from temper.trainer.engine.megatron.rank.gradients import RankGradients
from temper.trainer.engine.megatron.rank.moments import Moments
from temper.trainer.engine.megatron.rank.place import Place
from temper.trainer.engine.megatron.rank.policy import Policy, finalize
from temper.trainer.engine.torch.forward import Prediction
from temper.trainer.engine.torch.mixture import Balance, apart, domain_by_domain
from temper.trainer.engine.torch.model import DecoderConfig
from temper.trainer.engine.torch.sums import Sums
from temper.trainer.engine.torch.updates import Update, token_batch
from temper.trainer.samples import Sample


class RankTrainee:
    """One model on this rank. Every call comes to all ranks, in one order."""

    def __init__(
        self,
        cfg: DecoderConfig,
        place: Place,
        files: list[str],
        device: torch.device,
        beat: Callable[[], None],
    ) -> None:
        self._beat = beat
        self._cfg, self._place, self._device = cfg, place, device
        self._reference: Policy | None = None
        self.steps = 0
        """Optimizer steps since moments were forgotten."""
        options = place.options
        self._half = options.precision == "bf16"
        self._policy = self._model(files)
        config = self._policy.config
        self._wrapped: Any = DistributedDataParallel(
            config,
            DistributedDataParallelConfig(
                grad_reduce_in_fp32=True, use_distributed_optimizer=options.distributed_optimizer
            ),
            Float16Module(config, self._policy) if self._half else self._policy,
        )
        settings = OptimizerConfig(
            optimizer="adam",
            lr=0.0,
            weight_decay=0.0,
            bf16=self._half,
            params_dtype=config.params_dtype,
            use_distributed_optimizer=options.distributed_optimizer,
        )
        self._optimizer: Any = get_megatron_optimizer(
            settings, [self._wrapped], config_overrides={}, use_gloo_process_groups=False
        )
        self._moments = Moments(self._optimizer)

    # ------------------------------------------------------------- weights in and out

    def _model(self, files: list[str]) -> Policy:
        """A model on this rank's device with its part of the weights; the scalar head is zero where no file has one."""
        dtype = torch.bfloat16 if self._half else torch.float32
        model = Policy(self._cfg, self._place.options).to(self._device, dtype)
        params = dict(model.named_parameters())
        with Files(files) as given, torch.no_grad():
            for slot in [*self._place.slots(self._cfg), *self._place.head_slots()]:
                value = self._part(slot, given, "")
                params[slot.name].copy_(value) if value is not None else params[slot.name].zero_()
                # what norms and clipping count once per part, not once per copy
                vars(params[slot.name])["tensor_model_parallel"] = slot.kind != "same"
        return model

    def _part(self, slot: Slot, given: Files, prefix: str) -> Tensor | None:
        """What this rank gets of what files hold for a slot; None for a head they do not have, or a moment that was never made."""
        if not all(prefix + source in given for source in slot.sources):
            return None
        parts = self._place.options.tensor_parallel
        return part(slot, given.under(prefix), self._cfg, self._place.tensor, parts)

    def refer(self, files: list[str]) -> None:
        """Freeze a reference, or drop it."""
        self._reference = self._model(files) if files else None
        if self._reference is not None:
            self._reference.requires_grad_(requires_grad=False)

    def forget(self, *, keep_head: bool) -> None:
        """Drop moments and step count; the scalar head is zero again unless it is to be kept."""
        self._moments.forget()
        self.steps = 0
        for slot in [] if keep_head else self._place.head_slots():
            param = self._policy.get_parameter(slot.name)
            with torch.no_grad():
                param.zero_()
            self._moments.write(param, "param", torch.zeros_like(param, dtype=torch.float32), 0.0)

    def restore(self, files: list[str], steps: int) -> None:
        """Master weights, and moments where there are any."""
        params = dict(self._policy.named_parameters())
        kinds = {"param": "", **({} if not steps else {kind: f"{kind}/" for kind in MOMENTS})}
        with Files(files) as given:
            for slot in [*self._place.slots(self._cfg), *self._place.head_slots()]:
                param = params[slot.name]
                for kind, prefix in kinds.items():
                    found = self._part(slot, given, prefix)
                    value = torch.zeros(param.shape) if found is None else found
                    self._moments.write(param, kind, value, float(steps))
        self.steps = steps

    def piece(self, what: str, stage: int, layers: range) -> dict[str, Tensor]:
        """Some layers of a stage under their Hugging Face names, on one rank; on all others nothing.

        ``weights`` as computed with, ``param`` as the optimizer keeps them, ``reference``, or a moment. Of other ranks one tensor
        at a time is here: nobody holds a copy of the model.
        """
        model = self._reference if what == "reference" else self._policy
        if model is None or self._place.stage != stage:
            return {}
        return self._gathered(model, self._place.slots(self._cfg, layers), what)

    def head(self, what: str) -> dict[str, Tensor]:
        """The same for the scalar head."""
        return self._gathered(self._policy, self._place.head_slots(), what)

    def _gathered(self, model: Policy, slots: Sequence[Slot], what: str) -> dict[str, Tensor]:
        spread = self._place.options.distributed_optimizer and what not in ("weights", "reference")
        if (what in MOMENTS and not self.steps) or (self._place.copy and not spread):
            return {}
        group: Any = parallel_state.get_tensor_model_parallel_group()
        mine = self._place.tensor == 0 and self._place.copy == 0
        found: dict[str, Tensor] = {}
        for slot in slots:
            param = model.get_parameter(slot.name)
            own = self._moments.read(param, what) if what in (*MOMENTS, "param") else param.detach()
            if self._place.copy:
                continue
            root = torch.distributed.get_global_rank(group, 0)
            shards = [torch.empty_like(own) for _ in range(group.size())] if mine else None
            torch.distributed.gather(own.contiguous(), shards, dst=root, group=group)
            if shards is not None:
                found |= whole(slot, shards, self._cfg)
        return {name: tensor.cpu() for name, tensor in found.items()}

    # ------------------------------------------------------------- passes

    def _micro_batches(self, samples: Sequence[Sample], budget: int) -> list[Micro]:
        return micro_batches(samples, budget, divisor=self._place.options.columns)

    def measure(
        self, samples: Sequence[Sample], budget: int, needs: Needs, *, of_reference: bool
    ) -> list[tuple[Micro, Prediction]]:
        """What is said about the rows of this copy; nothing on ranks that do not speak."""
        model = self._reference if of_reference else self._policy
        assert model is not None, "a reference is made when a phase begins"
        micros = self._micro_batches(samples, budget)
        with torch.no_grad():
            wanted = NOTHING_MORE if of_reference else needs
            found = run(model, model, micros, wanted, None, self._beat) if micros else []
        return found if self._place.speaks else []

    def update(
        self, update: Update, totals: Totals, said: Mapping[str, Any], balance: Balance
    ) -> tuple[float, float, Sums, dict[str, float]]:
        """Forward, backward, and an optimizer step where everything is finite.

        Loss and gradient norm, the same on all ranks; this rank's sums; what is reported about domains.
        """
        sums = Sums()

        def accumulate(members: Sequence[int]) -> float:
            return self._accumulate(update, members, totals, said, sums)

        self._wrapped.zero_grad_buffer()
        self._optimizer.zero_grad()  # a parameter's own gradient is an alias of the buffer after a step
        if apart(update):
            gradients = RankGradients(self._wrapped, self._moments)
            loss, reported = domain_by_domain(update, totals, accumulate, gradients, balance)
        else:
            loss, reported = accumulate(update.members), {}
        norm = self._apply(said["optimizer"], loss + update.made.loss)
        return loss, norm, sums, reported

    def _accumulate(
        self, update: Update, members: Sequence[int], totals: Totals, said: Mapping[str, Any], sums: Sums
    ) -> float:
        """Forward and backward over members of the update; their share of the loss, known to all ranks."""
        micros = self._micro_batches([update.batch.samples[i] for i in members], int(said["budget"]))

        def share(micro: Micro, found: Prediction) -> tuple[Tensor, float]:
            order = [members[k] for k in micro.order]
            tokens = token_batch(update, order, micro.packed, found, totals, float(said["beta"]))
            terms: LossTerms = update.algorithm.loss(tokens, update.settings)
            if self._place.speaks:
                sums.add(terms)
                sums.total_tokens += micro.packed.tokens
            loss: Any = terms.loss
            return loss, float(loss.detach())

        local = 0.0
        if micros:
            local = math.fsum(run(self._wrapped, self._policy, micros, update.needs, share, self._beat))
        else:
            finalize([self._wrapped])
        known = torch.tensor([local if self._place.speaks else 0.0], dtype=torch.float64, device=self._device)
        torch.distributed.all_reduce(known)
        return float(known.item())

    def _apply(self, said: Mapping[str, Any], loss: float) -> float:
        """Clip and step; weights stay as they are where loss or norm is not finite. The norm."""
        self._moments.tune(said)
        self._optimizer.prepare_grads()
        norm = float(self._optimizer.get_grad_norm())
        if math.isfinite(norm) and math.isfinite(loss):
            clip_grad_by_total_norm_fp32(self._optimizer.get_parameters(), said["max_grad_norm"], norm)
            self._optimizer.step_with_ready_grads()
            self.steps += 1
        return norm


def deal(found: Sequence[tuple[Micro, Prediction]]) -> tuple[list[int], dict[str, list[Any]]]:
    """Predictions sample by sample: indices, and arrays by name."""
    order: list[int] = []
    arrays: dict[str, list[Any]] = {}
    for micro, said in found:
        cuts = micro.packed.lengths.long().tolist()
        order += micro.order
        flat = {"log_pi": said.log_pi, "entropy": said.entropy, "values": said.value}
        for name, tensor in flat.items():
            if tensor is not None:
                arrays.setdefault(name, []).extend(each.numpy() for each in tensor.float().cpu().split(cuts))
        if said.score is not None:
            scores = said.score.float().cpu()
            arrays.setdefault("scores", []).extend(each.numpy() for each in scores.split(1))
    return order, arrays
