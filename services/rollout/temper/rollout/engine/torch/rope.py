"""Rotary position embedding as one complex product.

Hugging Face rotates the halves of a head: pairs are ``(x[i], x[i + d/2])``. The loader interleaves the rows of the q and
k projections once (:func:`interleave`), so that a pair lies side by side and the rotation is a complex multiplication.
Attention scores do not change: q and k are permuted alike.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from temper.rollout.engine.torch.architecture import RopeConfig


def frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Inverse frequencies, float64 ``[head_dim / 2]``. Formulas: transformers ``modeling_rope_utils``."""
    exponent = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    plain = rope.theta**-exponent
    if rope.kind == "linear":
        return plain / rope.factor
    if rope.kind == "llama3":
        return _llama3(plain, rope)
    return plain


def _llama3(plain: Tensor, rope: RopeConfig) -> Tensor:
    """Long waves are divided by the factor, short ones stay, those between are blended (Llama 3.1)."""
    turns = rope.original_length * plain / (2 * math.pi)
    blend = ((turns - rope.low_factor) / (rope.high_factor - rope.low_factor)).clamp(0.0, 1.0)
    return blend * plain + (1 - blend) * plain / rope.factor


def rotations(rope: RopeConfig, head_dim: int, length: int) -> Tensor:
    """Unit complex numbers ``[length, head_dim / 2]``: position p turns pair i by ``p * frequency_i``."""
    angle = torch.outer(torch.arange(length, dtype=torch.float64), frequencies(rope, head_dim))
    return torch.polar(torch.ones_like(angle), angle).to(torch.complex64)


def interleave(rows: Tensor, head_dim: int) -> Tensor:
    """Reorder the rows of a projection ``[heads * head_dim, ...]`` from halves to pairs, head by head."""
    heads = rows.shape[0] // head_dim
    halves = rows.reshape(heads, 2, head_dim // 2, *rows.shape[1:])
    return halves.transpose(1, 2).reshape(rows.shape)


def rotate(x: Tensor, turn: Tensor) -> Tensor:
    """Rotate pairs: x ``[n, heads, head_dim]`` by turn ``[n, heads or 1, head_dim / 2]``."""
    pairs = torch.view_as_complex(x.view(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turn).view(x.shape)
