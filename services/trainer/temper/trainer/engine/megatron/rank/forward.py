"""Forward and backward passes of one rank: its rows of a batch, through Megatron's schedules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.tensor_parallel.mappings import reduce_from_tensor_model_parallel_region
from torch import Tensor, nn

from temper.trainer.engine.megatron.rank.policy import Policy
from temper.trainer.engine.torch.forward import ROW_TOKENS, Prediction
from temper.trainer.engine.torch.packing import Packed, pack, rows, trees
from temper.trainer.samples import Sample

Share = Callable[["Micro", Prediction], tuple[Tensor, Any]]
"""(micro-batch, what the policy says) -> (its share of the loss, what to report)."""


@dataclass(frozen=True, slots=True)
class Micro:
    """One micro-batch of this rank."""

    order: list[int]
    """Indices of its samples."""
    packed: Packed


def micro_batches(samples: Sequence[Sample], budget: int) -> list[Micro]:
    """The micro-batches of this data-parallel copy: rows are dealt round among the copies. With a pipeline all have one shape."""
    if not samples:
        return []
    capacity = max(ROW_TOKENS, *(sample.ids.size for sample in samples))
    dealt = rows(trees(samples, capacity), capacity)[
        parallel_state.get_data_parallel_rank() :: parallel_state.get_data_parallel_world_size()
    ]
    per_batch = max(1, budget // capacity)
    found: list[Micro] = []
    for start in range(0, len(dealt), per_batch):
        part = dealt[start : start + per_batch]
        order = [member for row in part for tree in row for member in tree.members]
        found.append(Micro(order, pack(samples, part)))
    if found and parallel_state.get_pipeline_model_parallel_world_size() > 1:
        height = max(each.packed.ids.shape[0] for each in found)
        width = max(each.packed.ids.shape[1] for each in found)
        return [Micro(each.order, padded(each.packed, height, width)) for each in found]
    return found


def padded(packed: Packed, height: int, width: int) -> Packed:
    """The same in a larger shape; what is added looks at itself."""
    had_rows, had = packed.ids.shape
    ids = packed.ids.new_zeros(height, width)
    positions = torch.zeros_like(ids)
    mask = torch.eye(width, dtype=torch.bool).expand(height, 1, width, width).clone()
    ids[:had_rows, :had], positions[:had_rows, :had] = packed.ids, packed.positions
    mask[:had_rows, :, :had, :had] = packed.mask

    def moved(flat: Tensor) -> Tensor:
        return flat // had * width + flat % had

    where, ends = moved(packed.where), moved(packed.ends)
    return replace(packed, ids=ids, positions=positions, mask=mask, where=where, ends=ends)


def predict(model: Policy, packed: Packed, hidden: Tensor) -> Prediction:
    """log π and entropy of the action tokens from hidden states ``[col, row, hidden]``; logits stay split by vocabulary."""
    flat = hidden.transpose(0, 1).flatten(0, 1)
    logits = model.logits(flat[packed.where.to(flat.device)]).float()
    log_pi, entropy = log_probs(logits, packed.target.to(flat.device))
    return Prediction(log_pi, entropy, value=None, score=None)


def log_probs(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """log softmax at ``target`` and entropy, both ``[n]``, from this part's logits ``[n, vocab / tensor_parallel]``."""
    top = logits.detach().max(dim=-1, keepdim=True).values
    group = parallel_state.get_tensor_model_parallel_group()
    torch.distributed.all_reduce(top, op=torch.distributed.ReduceOp.MAX, group=group)
    shifted = logits - top
    weights = shifted.exp()
    own = target - parallel_state.get_tensor_model_parallel_rank() * logits.shape[-1]
    mine = (own >= 0) & (own < logits.shape[-1])
    picked = shifted.gather(1, own.clamp(0, logits.shape[-1] - 1)[:, None])[:, 0]
    sums = torch.stack((weights.sum(-1), (weights * shifted).sum(-1), torch.where(mine, picked, 0.0)))
    total, moment, chosen = reduce_from_tensor_model_parallel_region(sums).unbind()
    log_total = total.log()
    return chosen - log_total, log_total - moment / total


def run(wrapped: nn.Module, model: Policy, micros: Sequence[Micro], share: Share | None) -> list[Any]:
    """All micro-batches through the pipeline; with ``share`` backward as well. What the last stage reports, else nothing."""

    def last(micro: Micro, hidden: Tensor, *, non_loss_data: bool = False) -> Any:
        found = predict(model, micro.packed, hidden)
        if share is None or non_loss_data:
            return micro, found
        loss, report = share(micro, found)
        return loss, torch.zeros((), dtype=torch.int, device=loss.device), report

    def forward(source: Any, here: nn.Module) -> tuple[Tensor, Callable[..., Any]]:
        micro: Micro = next(source)
        device = next(model.parameters()).device
        packed = micro.packed
        hidden = here(packed.ids.to(device), packed.positions.to(device), ~packed.mask.to(device))
        return hidden, partial(last, micro)

    height, width = micros[0].packed.ids.shape
    return get_forward_backward_func()(
        forward_step_func=forward,
        data_iterator=iter(micros),
        model=[wrapped],
        num_microbatches=len(micros),
        seq_length=width,
        micro_batch_size=height,
        forward_only=share is None,
        collect_non_loss_data=share is None,
    )
