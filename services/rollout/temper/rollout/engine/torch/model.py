"""One forward of the decoder over everything a step computes: decode rows and prefill chunks together.

Linear layers see all rows at once. In batch-invariant mode few rows are padded, so that a row's fp32 result is bitwise the same
whatever the number of rows (:mod:`.padding`). Attention is :mod:`.attention`'s.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812 - the name every torch reader expects
from torch import Tensor

from temper.rollout.engine.torch import rope
from temper.rollout.engine.torch.architecture import Architecture
from temper.rollout.engine.torch.attention import Attention
from temper.rollout.engine.torch.feed import Feed
from temper.rollout.engine.torch.padding import row_multiple
from temper.rollout.engine.torch.pages import Scratch
from temper.rollout.engine.torch.weights import Layer, Matrix, Weights


class Model:
    """The decoder of one architecture. Holds no weights: each forward is told which version it runs."""

    def __init__(self, shape: Architecture, *, batch_invariant: bool = True) -> None:
        self.shape, self.batch_invariant = shape, batch_invariant
        self.rotary = rope.Rotary(shape.rope, shape.head_dim, shape.max_context)
        self._row_multiple = row_multiple(_products(shape)) if batch_invariant else 1
        self._scratch = Scratch()

    def forward(self, weights: Weights, kv: Tensor, feeds: Sequence[Feed]) -> Tensor:
        """Compute KV of all feeds, into ``kv``; returns logits ``[sum of feed.logits, vocab]``, feed by feed.

        ``kv`` is the tensor of a :class:`.kv.Cache`.
        """
        attention = Attention(self.shape, kv, feeds, cascade=not self.batch_invariant, scratch=self._scratch)
        x = self._trunk(weights, feeds, attention)
        wanted = _wanted(feeds)
        # Ascending and without gaps exactly if the last is as large as their count says.
        leading = not wanted or wanted[-1] == len(wanted) - 1
        return self._head(weights, x[: len(wanted)] if leading else x[torch.tensor(wanted)])

    def _trunk(self, weights: Weights, feeds: Sequence[Feed], attention: Attention) -> Tensor:
        """Embed and run all layers; returns the residual stream ``[rows, width]``, padded."""
        shape = self.shape
        tokens = [token for feed in feeds for token in feed.tokens]
        positions = [at for feed in feeds for at in range(feed.start, feed.start + len(feed.tokens))]
        rows, padding = len(tokens), [0] * (-len(tokens) % self._row_multiple)
        stretches = None
        if not self.rotary.fixed:
            stretches = [feed.stretch for feed in feeds for _ in feed.tokens] + padding
        x = weights.embedding.index_select(0, torch.tensor(tokens + padding))
        turn = self.rotary.turns(positions + padding, stretches).unsqueeze(1)
        # Values ride along through the rotation with factor 1, which is exact: one product and one write per layer.
        turns = torch.ones(
            rows + len(padding), shape.heads + 2 * shape.kv_heads, shape.head_dim // 2, dtype=torch.complex64
        )
        turns[:, : shape.heads + shape.kv_heads] = turn
        heads = torch.zeros(rows + len(padding), shape.heads * shape.head_dim)
        for index, layer in enumerate(weights.layers):
            qkv = self._project(layer, x, turns)
            attention(index, qkv[:rows], heads[:rows])
            x = linear(heads, layer.output, x)
            if layer.output_bias is not None:
                x += layer.output_bias
            x = self._swiglu(layer, x)
        return x

    def _project(self, layer: Layer, x: Tensor, turns: Tensor) -> Tensor:
        """Normalised and rotated ``[rows, heads + 2 kv_heads, head_dim]``."""
        shape = self.shape
        normed = F.rms_norm(x, (shape.width,), layer.attention_norm, shape.norm_eps)
        qkv = linear(normed, layer.qkv, layer.qkv_bias)
        qkv = qkv.view(len(x), shape.heads + 2 * shape.kv_heads, shape.head_dim)
        if layer.qk_norm is not None:
            qk = qkv[:, : shape.heads + shape.kv_heads]
            torch.mul(F.rms_norm(qk, (shape.head_dim,), None, shape.norm_eps), layer.qk_norm, out=qk)
        return rope.rotate(qkv, turns)

    def _swiglu(self, layer: Layer, x: Tensor) -> Tensor:
        normed = F.rms_norm(x, (self.shape.width,), layer.mlp_norm, self.shape.norm_eps)
        both = linear(normed, layer.gate_up)
        if layer.gate_up_bias is not None:
            both += layer.gate_up_bias
        hidden = self.shape.hidden
        x = linear(F.silu(both[:, :hidden]).mul_(both[:, hidden:]), layer.down, x)
        return x if layer.down_bias is None else x + layer.down_bias

    def _head(self, weights: Weights, x: Tensor) -> Tensor:
        rows = len(x)
        missing = -rows % self._row_multiple
        x = F.pad(x, (0, 0, 0, missing)) if missing else x
        normed = F.rms_norm(x, (self.shape.width,), weights.norm, self.shape.norm_eps)
        return linear(normed, weights.head)[:rows]


def _products(shape: Architecture) -> list[tuple[int, int]]:
    """``(in, out)`` of all linear layers."""
    heads = shape.heads * shape.head_dim
    return [
        (shape.width, heads + 2 * shape.kv_heads * shape.head_dim),
        (heads, shape.width),
        (shape.width, 2 * shape.hidden),
        (shape.hidden, shape.width),
        (shape.width, shape.vocab),
    ]


def linear(x: Tensor, matrix: Matrix, addend: Tensor | None = None) -> Tensor:
    """``x [rows, in]`` times ``matrix [in, out]``, plus a bias or a residual."""
    if not isinstance(matrix, Tensor):
        return matrix(x, addend)
    return torch.mm(x, matrix) if addend is None else torch.addmm(addend, x, matrix)


def _wanted(feeds: Sequence[Feed]) -> list[int]:
    """Rows whose logits are asked for."""
    rows: list[int] = []
    end = 0
    for feed in feeds:
        end += len(feed.tokens)
        rows += range(end - feed.logits, end)
    return rows
