"""One forward of the decoder, in two shapes: a packed prefill over buffers, and a decode step over slabs.

Linear layers see all rows at once, padded to a multiple of 16: on CPUs a row's fp32 result is then bitwise the same
whatever the number of rows (batch-invariant mode; without it nothing is padded). Attention sees one sequence (prefill) or one size class (decode) at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F  # noqa: N812 - the name every torch reader expects
from torch import Tensor

from temper.rollout.engine.torch import rope
from temper.rollout.engine.torch.architecture import Architecture
from temper.rollout.engine.torch.weights import Layer, Weights

_ROW_MULTIPLE = 16  # the smallest number for which products of fewer rows and of more agree in every bit


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of context tokens to compute: positions ``[start, start + len(tokens))`` of a sequence."""

    tokens: Sequence[int]
    """Token ids."""
    start: int
    """Position of the first; the buffer is full up to here."""
    buffer: Tensor
    """``[layers, 2, kv_heads, >= start + len(tokens), head_dim]``; written in place."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The sequences of one slab in a decode step."""

    kv: Tensor
    """``[layers, rows, 2, kv_heads, capacity, head_dim]``; written in place."""
    tokens: Sequence[int]
    """Per row, the token to feed."""
    positions: Sequence[int]
    """Per row, its position: the row is full up to here."""


# Attention of one layer: (layer, q/k/v [rows, heads + 2 kv_heads, head_dim], out [rows, heads * head_dim]).
Attend: TypeAlias = Callable[[int, Tensor, Tensor], None]


class Model:
    """The decoder of one architecture. Holds no weights: each forward is told which version it runs."""

    def __init__(self, shape: Architecture, *, batch_invariant: bool = True) -> None:
        self.shape = shape
        self._row_multiple = _ROW_MULTIPLE if batch_invariant else 1
        self._turns = rope.rotations(shape.rope, shape.head_dim, shape.max_context)
        self._scale = shape.head_dim**-0.5

    def prefill(self, weights: Weights, pieces: Sequence[Piece]) -> Tensor:
        """Compute KV of all pieces; returns logits ``[pieces, vocab]`` of each piece's last token."""
        tokens = [token for piece in pieces for token in piece.tokens]
        positions = [piece.start + i for piece in pieces for i in range(len(piece.tokens))]
        masks = [_causal(piece) for piece in pieces]
        ends = torch.tensor([len(piece.tokens) for piece in pieces]).cumsum(0) - 1

        def attend(layer: int, qkv: Tensor, out: Tensor) -> None:
            row = 0
            for piece, mask in zip(pieces, masks, strict=True):
                count = len(piece.tokens)
                self._attend_piece(
                    piece.buffer[layer], qkv[row : row + count], piece.start, mask, out[row : row + count]
                )
                row += count

        return self._head(weights, self._trunk(weights, tokens, positions, attend)[ends])

    def decode(self, weights: Weights, groups: Sequence[Rows]) -> Tensor:
        """Feed one token to every row; returns logits ``[rows of all groups, vocab]``."""
        tokens = [token for group in groups for token in group.tokens]
        positions = [position for group in groups for position in group.positions]
        places = torch.tensor(positions)
        spans: list[tuple[Rows, slice, Tensor, Tensor, Tensor]] = []
        row = 0
        for group in groups:
            span = slice(row, row + len(group.tokens))
            row = span.stop
            at = places[span]
            spans.append(
                (group, span, torch.arange(len(group.tokens)), at, _length_bias(at, group.kv.shape[4]))
            )

        def attend(layer: int, qkv: Tensor, out: Tensor) -> None:
            for group, span, index, at, bias in spans:
                self._attend_rows(group.kv[layer], qkv[span], index, at, bias, out[span])

        return self._head(weights, self._trunk(weights, tokens, positions, attend))[:row]

    def _trunk(self, weights: Weights, tokens: list[int], positions: list[int], attend: Attend) -> Tensor:
        """Embed and run all layers; returns the residual stream ``[rows padded to 16, width]``."""
        shape, rows = self.shape, len(tokens)
        padding = [0] * (-rows % self._row_multiple)
        x = weights.embedding[torch.tensor(tokens + padding)]
        turn = self._turns[torch.tensor(positions + padding)].unsqueeze(1)
        # Values ride along through the rotation with factor 1, which is exact: one product and one write per layer.
        still = torch.ones(len(x), shape.kv_heads, shape.head_dim // 2, dtype=torch.complex64)
        turns = torch.cat([turn.expand(-1, shape.heads + shape.kv_heads, -1), still], dim=1)
        heads = torch.zeros(len(x), shape.heads * shape.head_dim)
        for index, layer in enumerate(weights.layers):
            qkv = self._project(layer, x, turns)
            attend(index, qkv[:rows], heads[:rows])
            x = torch.addmm(x, heads, layer.output)
            if layer.output_bias is not None:
                x += layer.output_bias
            x = self._swiglu(layer, x)
        return x

    def _project(self, layer: Layer, x: Tensor, turns: Tensor) -> Tensor:
        """Normalised and rotated ``[rows, heads + 2 kv_heads, head_dim]``."""
        shape = self.shape
        normed = F.rms_norm(x, (shape.width,), layer.attention_norm, shape.norm_eps)
        qkv = torch.addmm(layer.qkv_bias, normed, layer.qkv)
        qkv = qkv.view(len(x), shape.heads + 2 * shape.kv_heads, shape.head_dim)
        if layer.qk_norm is not None:
            qk, v = qkv.split((shape.heads + shape.kv_heads, shape.kv_heads), dim=1)
            qk = F.rms_norm(qk, (shape.head_dim,), None, shape.norm_eps) * layer.qk_norm
            qkv = torch.cat([qk, v], dim=1)
        return rope.rotate(qkv, turns)

    def _swiglu(self, layer: Layer, x: Tensor) -> Tensor:
        normed = F.rms_norm(x, (self.shape.width,), layer.mlp_norm, self.shape.norm_eps)
        both = torch.mm(normed, layer.gate_up)
        if layer.gate_up_bias is not None:
            both += layer.gate_up_bias
        gate, up = both.split(self.shape.hidden, dim=1)
        x = torch.addmm(x, F.silu(gate).mul_(up), layer.down)
        return x if layer.down_bias is None else x + layer.down_bias

    def _head(self, weights: Weights, x: Tensor) -> Tensor:
        rows = len(x)
        x = F.pad(x, (0, 0, 0, -rows % self._row_multiple))
        return torch.mm(F.rms_norm(x, (self.shape.width,), weights.norm, self.shape.norm_eps), weights.head)[
            :rows
        ]

    def _attend_piece(self, kv: Tensor, qkv: Tensor, start: int, mask: Tensor | None, out: Tensor) -> None:
        """One sequence: kv ``[2, kv_heads, tokens, d]``, qkv ``[count, heads + 2 kv_heads, d]``, out ``[count, heads * d]``."""
        shape, count = self.shape, len(qkv)
        stop = start + count
        q, k, v = qkv.split((shape.heads, shape.kv_heads, shape.kv_heads), dim=1)
        kv[0, :, start:stop] = k.transpose(0, 1)
        kv[1, :, start:stop] = v.transpose(0, 1)
        heads = F.scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            kv[0, None, :, :stop],
            kv[1, None, :, :stop],
            attn_mask=mask,
            is_causal=mask is None,
            scale=self._scale,
            enable_gqa=True,
        )
        out.view(count, shape.heads, shape.head_dim).copy_(heads[0].transpose(0, 1))

    def _attend_rows(
        self, kv: Tensor, qkv: Tensor, index: Tensor, at: Tensor, bias: Tensor, out: Tensor
    ) -> None:
        """One size class: kv ``[rows, 2, kv_heads, capacity, d]``; the query heads of a kv head fold into query length."""
        shape, rows = self.shape, len(qkv)
        kv[index, :, :, at] = qkv[:, shape.heads :].view(rows, 2, shape.kv_heads, shape.head_dim)
        folded = (rows, shape.kv_heads, shape.heads // shape.kv_heads, shape.head_dim)
        heads = F.scaled_dot_product_attention(
            qkv[:, : shape.heads].reshape(folded),
            kv[:rows, 0],
            kv[:rows, 1],
            attn_mask=bias,
            scale=self._scale,
        )
        out.view(folded).copy_(heads)


def _causal(piece: Piece) -> Tensor | None:
    """None for a fresh prompt (the kernel's own causal mask); else bool ``[count, start + count]``, True = visible."""
    if piece.start == 0:
        return None
    count = len(piece.tokens)
    return torch.ones(count, piece.start + count, dtype=torch.bool).tril(piece.start)


def _length_bias(at: Tensor, capacity: int) -> Tensor:
    """Additive mask ``[rows, 1, 1, capacity]``: 0 up to and including ``at``, -inf behind."""
    hidden = torch.arange(capacity) > at[:, None]
    return torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))[:, None, None]
