"""Forward passes over packed samples: what the policy says at every action token, and what its heads say about it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from temper.trainer.algorithms.targets import NOTHING_MORE, Needs
from temper.trainer.engine.torch.model import Decoder
from temper.trainer.engine.torch.packing import Packed, Tree, pack, rows, trees
from temper.trainer.samples import Sample

ROW_TOKENS = (
    256  # short rows keep attention's quadratic mask small; a longer sequence gets a row of its own length
)


@dataclass(frozen=True, slots=True)
class Prediction:
    """One micro-batch, all sequences one after another."""

    log_pi: Tensor
    """[action] log π."""
    entropy: Tensor
    """[action] entropy, from unscaled logits in fp32."""
    value: Tensor | None
    """[action] V before the token, where asked for."""
    score: Tensor | None
    """[sample] head at the last token, where asked for."""


@dataclass(slots=True)
class Gathered:
    """The same per sample, as arrays, in the order of the samples given."""

    log_pi: list[NDArray[np.float32]]
    entropy: list[NDArray[np.float32]]
    values: list[NDArray[np.float32]] | None
    scores: NDArray[np.float32] | None


def micro_batches(samples: Sequence[Sample], budget: int) -> Iterator[tuple[list[int], Packed]]:
    """Packed micro-batches of about ``budget`` tokens and, for each, the samples in it in order."""
    if not samples:
        return
    capacity = max(ROW_TOKENS, *(sample.ids.size for sample in samples))
    layout = rows(trees(samples, capacity), capacity)
    per_batch = max(1, budget // capacity)
    for start in range(0, len(layout), per_batch):
        part = layout[start : start + per_batch]
        yield _order(part), pack(samples, part)


def _order(layout: Sequence[Sequence[Tree]]) -> list[int]:
    return [member for row in layout for tree in row for member in tree.members]


def predict(model: Decoder, packed: Packed, device: torch.device, needs: Needs = NOTHING_MORE) -> Prediction:
    """One forward pass. The head must be there where values or scores are asked for."""
    hidden = model.hidden(packed.ids.to(device), packed.positions.to(device), packed.mask.to(device))
    flat = hidden.flatten(0, 1)
    before = flat[packed.where.to(device)]
    log_probs = model.lm_head(before).float().log_softmax(dim=-1)
    entropy = -(log_probs.exp() * log_probs).sum(dim=-1)
    return Prediction(
        log_pi=log_probs.gather(1, packed.target.to(device)[:, None])[:, 0],
        entropy=entropy,
        value=model.judge(before) if needs.values else None,
        score=model.judge(flat[packed.ends.to(device)]) if needs.scores else None,
    )


def gather(
    model: Decoder, samples: Sequence[Sample], budget: int, device: torch.device, needs: Needs = NOTHING_MORE
) -> Gathered:
    """Measure samples without gradients; every one of them must have acted."""
    nothing = np.zeros(0, dtype=np.float32)
    out = Gathered(
        [nothing] * len(samples),
        [nothing] * len(samples),
        [nothing] * len(samples) if needs.values else None,
        np.zeros(len(samples), dtype=np.float32) if needs.scores else None,
    )
    with torch.no_grad():
        for order, packed in micro_batches(samples, budget):
            found = predict(model, packed, device, needs)
            cuts = np.cumsum(packed.lengths.long().numpy())[:-1]
            _deal(out.log_pi, order, found.log_pi, cuts)
            _deal(out.entropy, order, found.entropy, cuts)
            if out.values is not None and found.value is not None:
                _deal(out.values, order, found.value, cuts)
            if out.scores is not None and found.score is not None:
                out.scores[order] = found.score.cpu().numpy()
    return out


def _deal(
    into: list[NDArray[np.float32]], order: Sequence[int], values: Tensor, cuts: NDArray[np.int64]
) -> None:
    for index, part in zip(order, np.split(values.cpu().numpy(), cuts), strict=True):
        into[index] = part
