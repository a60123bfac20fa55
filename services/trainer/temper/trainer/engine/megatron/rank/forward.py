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

from temper.trainer.algorithms.targets import Needs
from temper.trainer.engine.megatron.rank.policy import Policy
from temper.trainer.engine.torch.forward import ROW_TOKENS, Prediction
from temper.trainer.engine.torch.packing import Packed, pack, rows, trees
from temper.trainer.samples import Sample

Share = Callable[["Micro", Prediction], tuple[Tensor, Any]]
"""(micro-batch, what the policy says) -> (its share of the loss, what to report)."""


@dataclass(frozen=True, slots=True)
class Micro:
    """One micro-batch of this rank's copy of the model."""

    order: list[int]
    """Indices of its samples."""
    packed: Packed
    """All columns."""
    own: Columns


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a micro-batch that this process computes: all of them, unless a sequence is shared."""

    ids: Tensor
    """[row, own col]."""
    positions: Tensor
    """[row, own col]."""
    mask: Tensor
    """[row, 1, own col, col] True where a token may look."""
    acting: Tensor | None
    """Which action tokens are predicted here; None: all."""
    where: Tensor
    """[own action] flat index among the own columns."""
    ending: Tensor | None
    """Which samples end here; None: all."""
    ends: Tensor
    """[own sample] flat index among the own columns."""


def micro_batches(samples: Sequence[Sample], budget: int, *, divisor: int) -> list[Micro]:
    """The micro-batches of this data-parallel copy: rows are dealt round among the copies. With a pipeline all have one shape.

    Rows get a multiple of ``divisor`` columns.
    """
    if not samples:
        return []
    capacity = max(ROW_TOKENS, *(sample.ids.size for sample in samples))
    dealt = rows(trees(samples, capacity), capacity)[
        parallel_state.get_data_parallel_rank() :: parallel_state.get_data_parallel_world_size()
    ]
    per_batch = max(1, budget // capacity)
    cut = [dealt[start : start + per_batch] for start in range(0, len(dealt), per_batch)]
    packs = [pack(samples, part) for part in cut]
    if parallel_state.get_pipeline_model_parallel_world_size() > 1:
        height = max((each.ids.shape[0] for each in packs), default=0)
        width = max((each.ids.shape[1] for each in packs), default=0)
        packs = [padded(each, height, width) for each in packs]
    if divisor > 1:
        packs = [
            padded(each, each.ids.shape[0], -(-each.ids.shape[1] // divisor) * divisor) for each in packs
        ]
    orders = ([member for row in part for tree in row for member in tree.members] for part in cut)
    return [Micro(order, each, columns(each)) for order, each in zip(orders, packs, strict=True)]


def padded(packed: Packed, height: int, width: int) -> Packed:
    """The same in a larger shape; what is added looks at itself."""
    had_rows, had = packed.ids.shape
    if (height, width) == (had_rows, had):
        return packed
    ids = packed.ids.new_zeros(height, width)
    positions = torch.zeros_like(ids)
    mask = torch.eye(width, dtype=torch.bool).expand(height, 1, width, width).clone()
    ids[:had_rows, :had], positions[:had_rows, :had] = packed.ids, packed.positions
    mask[:had_rows, :, :had, :had] = packed.mask

    def moved(flat: Tensor) -> Tensor:
        return flat // had * width + flat % had

    where, ends = moved(packed.where), moved(packed.ends)
    return replace(packed, ids=ids, positions=positions, mask=mask, where=where, ends=ends)


def columns(packed: Packed) -> Columns:
    """What this process computes: one of equal pieces, in the order of the processes that share a sequence."""
    parts, rank = (
        parallel_state.get_context_parallel_world_size(),
        parallel_state.get_context_parallel_rank(),
    )
    if parts == 1:
        return Columns(packed.ids, packed.positions, packed.mask, None, packed.where, None, packed.ends)
    width = packed.ids.shape[1]
    piece = width // parts
    first = rank * piece
    own = slice(first, first + piece)

    def here(flat: Tensor) -> tuple[Tensor, Tensor]:
        column = flat % width - first
        chosen = torch.nonzero((column >= 0) & (column < piece))[:, 0]
        return chosen, (flat // width * piece + column)[chosen]

    acting, where = here(packed.where)
    ending, ends = here(packed.ends)
    ids, positions = packed.ids[:, own].contiguous(), packed.positions[:, own].contiguous()
    return Columns(ids, positions, packed.mask[:, :, own].contiguous(), acting, where, ending, ends)


def predict(model: Policy, micro: Micro, hidden: Tensor, needs: Needs) -> Prediction:
    """What the policy says at every action token, from the last stage's hidden states of the own columns.

    The same on all processes that share a sequence. Logits stay split by vocabulary.
    """
    packed, own = micro.packed, micro.own
    flat = model.flat(hidden)
    device = flat.device
    before = flat[own.where.to(device)]
    target = packed.target if own.acting is None else packed.target[own.acting]
    log_pi, entropy = log_probs(model.logits(before).float(), target.to(device))
    said = [log_pi, entropy, *([model.judge(before, bias=True)] if needs.values else [])]
    found = whole(torch.stack(said), own.acting, packed.target.numel())
    score = None
    if needs.scores:
        score = whole(
            model.judge(flat[own.ends.to(device)], bias=False)[None], own.ending, packed.ends.numel()
        )[0]
    return Prediction(found[0], found[1], value=found[2] if needs.values else None, score=score)


def whole(own: Tensor, at: Tensor | None, count: int) -> Tensor:
    """``[kind, count]`` of all processes that share a sequence, from what each of them found: ``[kind, own]`` at ``at``.

    Every one of them computes the same loss from it, and takes back the gradient of its own part.
    """
    if at is None:
        return own
    spread = own.new_zeros(own.shape[0], count).index_copy(1, at.to(own.device), own)
    group = parallel_state.get_context_parallel_group()
    return reduce_from_tensor_model_parallel_region(spread, group=group)


def log_probs(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """log softmax at ``target`` and entropy, both ``[n]``, from this part's logits ``[n, vocab / tensor_parallel]``."""
    if not target.numel():  # the actions of these rows are others' columns
        return logits.sum(dim=-1), logits.sum(dim=-1)
    if parallel_state.get_tensor_model_parallel_world_size() == 1:
        found = logits.log_softmax(dim=-1)
        return found.gather(1, target[:, None])[:, 0], -(found.exp() * found).sum(dim=-1)
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


def run(
    wrapped: nn.Module,
    model: Policy,
    micros: Sequence[Micro],
    needs: Needs,
    share: Share | None,
    beat: Callable[[], None],
) -> list[Any]:
    """All micro-batches through the pipeline; with ``share`` backward as well. What the last stage reports, else nothing.

    ``beat`` is called for every micro-batch.
    """

    def last(micro: Micro, hidden: Tensor, *, non_loss_data: bool = False) -> Any:
        found = predict(model, micro, hidden, needs)
        if share is None or non_loss_data:
            return micro, found
        loss, report = share(micro, found)
        return loss, torch.zeros((), dtype=torch.int, device=loss.device), report

    def forward(source: Any, here: nn.Module) -> tuple[Tensor, Callable[..., Any]]:
        beat()
        micro: Micro = next(source)
        device, own = next(model.parameters()).device, micro.own
        hidden = here(own.ids.to(device), own.positions.to(device), own.mask.to(device))
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
