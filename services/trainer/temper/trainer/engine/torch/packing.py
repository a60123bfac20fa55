"""Packing: many short sequences into few rows, kept apart by a block-diagonal mask.

Samples of one group begin with the same prompt. A *tree* packs such samples behind one copy of their prompt: every continuation
looks at the shared prefix and at itself, so the prompt goes through the model once per group instead of once per sample, with
the same gradients (positions and visible tokens of every token are unchanged).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from temper.trainer.samples import Sample


@dataclass(frozen=True, slots=True)
class Tree:
    """Samples that share their first ``prefix`` tokens."""

    members: tuple[int, ...]
    """Indices of the samples in the micro-batch."""
    prefix: int
    """Tokens shared by all members."""
    size: int
    """Tokens of the tree: the prefix once and every continuation."""


@dataclass(frozen=True, slots=True)
class Packed:
    """Model input of one micro-batch and where its action tokens are predicted."""

    ids: Tensor
    """[row, col] token ids; 0 in the padding."""
    positions: Tensor
    """[row, col] position of each token in its own sequence."""
    mask: Tensor
    """[row, 1, col, col] True where a token may look."""
    where: Tensor
    """[action] flat index (row·cols + col) of the hidden state that predicts each action token."""
    target: Tensor
    """[action] the action token."""
    ends: Tensor
    """[sample] flat index of the hidden state of each sample's last token."""
    sequence: Tensor
    """[action] index of its sample in the micro-batch."""
    lengths: Tensor
    """[sample] action tokens, as floats."""

    @property
    def tokens(self) -> int:
        """Tokens that go through the model, padding included."""
        return int(self.ids.numel())


def trees(samples: Sequence[Sample], limit: int) -> list[Tree]:
    """Group neighbours of one task behind their common prefix, as long as a tree fits into ``limit`` tokens."""
    out: list[Tree] = []
    for members in _families(samples):
        prefix = _common_prefix([samples[i] for i in members])
        chosen: list[int] = []
        size = prefix
        for i in members:
            extra = samples[i].ids.size - prefix
            if chosen and size + extra > limit:
                out.append(Tree(tuple(chosen), prefix, size))
                chosen, size = [], prefix
            chosen.append(i)
            size += extra
        out.append(Tree(tuple(chosen), prefix, size))
    return out


def _families(samples: Sequence[Sample]) -> list[list[int]]:
    families: dict[int, list[int]] = {}
    for i, sample in enumerate(samples):
        families.setdefault(sample.group, []).append(i)
    return list(families.values())


def _common_prefix(family: Sequence[Sample]) -> int:
    """Tokens that all share and that no sample acted on; the last of them predicts the first actions, so it stays shared."""
    first = family[0]
    shared = min(int(np.argmax(sample.mask)) if sample.actions else sample.ids.size for sample in family)
    for sample in family[1:]:
        same = first.ids[:shared] == sample.ids[:shared]
        shared = shared if bool(same.all()) else int(np.argmin(same))
    return shared if len(family) > 1 else 0


def rows(forest: Sequence[Tree], capacity: int) -> list[list[Tree]]:
    """First-fit decreasing into rows of ``capacity`` tokens; deterministic (ties by order)."""
    filled: list[tuple[int, list[Tree]]] = []
    for tree in sorted(forest, key=lambda tree: -tree.size):
        for k, (used, members) in enumerate(filled):
            if used + tree.size <= capacity:
                members.append(tree)
                filled[k] = (used + tree.size, members)
                break
        else:
            filled.append((tree.size, [tree]))
    return [members for _, members in filled]


def pack(samples: Sequence[Sample], layout: Sequence[Sequence[Tree]]) -> Packed:
    """Tensors for some rows of a layout. Sequence numbers count the samples of these rows in order of appearance."""
    width = max(sum(tree.size for tree in row) for row in layout)
    ids = np.zeros((len(layout), width), dtype=np.int64)
    positions = np.zeros_like(ids)
    look = np.zeros((len(layout), 1, width, width), dtype=np.bool_)
    look[:, 0] = np.eye(width, dtype=np.bool_)  # padding looks at itself: a row of no keys would be NaN
    where: list[NDArray[np.int64]] = []
    ends: list[int] = []
    order: list[int] = []
    for r, row in enumerate(layout):
        offset = 0
        for tree in row:
            found = _place(samples, tree, offset, ids[r], positions[r], look[r, 0])
            where.extend(columns + r * width for columns, _ in found)
            ends.extend(last + r * width for _, last in found)
            order.extend(tree.members)
            offset += tree.size
    chosen = [samples[i] for i in order]
    lengths = np.array([sample.actions for sample in chosen], dtype=np.int64)
    return Packed(
        ids=torch.from_numpy(ids),
        positions=torch.from_numpy(positions),
        mask=torch.from_numpy(look),
        where=torch.from_numpy(np.concatenate(where)),
        target=torch.from_numpy(np.concatenate([sample.ids[sample.mask] for sample in chosen])),
        ends=torch.tensor(ends),
        sequence=torch.from_numpy(np.repeat(np.arange(len(chosen)), lengths)),
        lengths=torch.from_numpy(lengths.astype(np.float32)),
    )


def _place(
    samples: Sequence[Sample],
    tree: Tree,
    offset: int,
    ids: NDArray[np.int64],
    positions: NDArray[np.int64],
    look: NDArray[np.bool_],
) -> list[tuple[NDArray[np.int64], int]]:
    """Write one tree into a row from column ``offset``.

    Per member: the columns that predict its action tokens, and the column of its last token.
    """
    prefix = slice(offset, offset + tree.prefix)
    ids[prefix] = samples[tree.members[0]].ids[: tree.prefix]
    positions[prefix] = np.arange(tree.prefix)
    look[prefix, prefix] = np.tri(tree.prefix, dtype=np.bool_)
    column = prefix.stop
    found: list[tuple[NDArray[np.int64], int]] = []
    for i in tree.members:
        tail = samples[i].ids[tree.prefix :]
        own = slice(column, column + tail.size)
        ids[own] = tail
        positions[own] = tree.prefix + np.arange(tail.size)
        look[own, prefix] = True
        look[own, own] = np.tri(tail.size, dtype=np.bool_)
        before = np.flatnonzero(samples[i].mask) - 1  # a token is predicted by the one before it
        columns = np.where(before < tree.prefix, offset + before, column + before - tree.prefix)
        found.append((columns, (own.stop if tail.size else prefix.stop) - 1))
        column = own.stop
    return found
