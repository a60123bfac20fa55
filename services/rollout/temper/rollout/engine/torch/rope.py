"""Rotary position embedding as one complex product, for every way of stretching the context that configs name.

Hugging Face rotates the halves of a head: pairs are ``(x[i], x[i + d/2])``. The loader interleaves the rows of the q and
k projections once (:func:`interleave`), so that a pair lies side by side and the rotation is a complex multiplication.
Attention scores do not change: q and k are permuted alike.

Two kinds turn by frequencies that depend on how long the context is *now*: dynamic NTK and longrope. Keys turned for one
length are of no use at another, so a length has a *stretch* (:meth:`Rotary.stretch`): contexts of equal stretch share
frequencies, and KV is keyed by it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from temper.rollout.engine.torch.architecture import RopeConfig


def frequencies(rope: RopeConfig, head_dim: int, stretch: int = 0) -> Tensor:
    """Inverse frequencies, float64 ``[head_dim / 2]``. Formulas: transformers ``modeling_rope_utils``."""
    exponent = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    if rope.kind == "dynamic":
        return _dynamic_base(rope, head_dim, stretch) ** -exponent
    plain = rope.theta**-exponent
    if rope.kind == "linear":
        return plain / rope.factor
    if rope.kind == "llama3":
        return _llama3(plain, rope)
    if rope.kind == "yarn":
        return _yarn(plain, rope, head_dim)
    if rope.kind == "longrope":
        divisors = rope.long_factors if stretch else rope.short_factors
        return plain / torch.tensor(divisors, dtype=torch.float64)
    return plain


def _dynamic_base(rope: RopeConfig, head_dim: int, length: int) -> float:
    """NTK-aware base for a context of ``length`` tokens; the plain one up to the original length."""
    longer = max(length, rope.original_length) / rope.original_length
    return rope.theta * (rope.factor * longer - (rope.factor - 1)) ** (head_dim / (head_dim - 2))


def _llama3(plain: Tensor, rope: RopeConfig) -> Tensor:
    """Long waves are divided by the factor, short ones stay, those between are blended (Llama 3.1)."""
    turns = rope.original_length * plain / (2 * math.pi)
    blend = ((turns - rope.low_factor) / (rope.high_factor - rope.low_factor)).clamp(0.0, 1.0)
    return blend * plain + (1 - blend) * plain / rope.factor


def _yarn(plain: Tensor, rope: RopeConfig, head_dim: int) -> Tensor:
    """Ramp over the index, from untouched to divided by the factor (arXiv 2309.00071)."""

    def index_of(turns: float) -> float:
        """Index of the frequency that makes so many turns over the original length."""
        return head_dim * math.log(rope.original_length / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = index_of(rope.beta_fast), index_of(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    span = high - low or 0.001  # a ramp without width is a step
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float64) - low) / span).clamp(0.0, 1.0)
    return plain * (1 - ramp) + plain / rope.factor * ramp


def rotations(rope: RopeConfig, head_dim: int, length: int, stretch: int = 0) -> Tensor:
    """Complex numbers ``[length, head_dim / 2]``: position p turns pair i by ``p * frequency_i``.

    Their modulus is the kind's attention factor, 1 for most: q and k both carry it.
    """
    return _turn(
        torch.arange(length, dtype=torch.float64)[:, None], frequencies(rope, head_dim, stretch), rope
    )


def _turn(positions: Tensor, frequency: Tensor, rope: RopeConfig) -> Tensor:
    angle = positions * frequency
    return torch.polar(torch.full_like(angle, rope.attention_factor), angle).to(torch.complex64)


class Rotary:
    """Turns by position, for contexts of any stretch."""

    def __init__(self, rope: RopeConfig, head_dim: int, max_context: int) -> None:
        self.fixed = rope.kind not in ("dynamic", "longrope")
        """Whether frequencies are the same for every length."""
        self._rope, self._head_dim = rope, head_dim
        # One table serves every length up to the original one; what lies beyond is computed when asked for.
        length = max_context if self.fixed else min(max_context, rope.original_length)
        self._table = rotations(rope, head_dim, length)

    def stretch(self, length: int) -> int:
        """Class of a context of ``length`` tokens: equal classes share frequencies, 0 is the unstretched one."""
        if self.fixed or length <= self._rope.original_length:
            return 0
        return length if self._rope.kind == "dynamic" else 1

    def turns(self, positions: Sequence[int], stretches: Sequence[int] | None = None) -> Tensor:
        """Rotation of each row, complex ``[rows, head_dim / 2]``; a row is a position in a context of some stretch."""
        places = torch.tensor(positions)
        if self.fixed or stretches is None or not any(stretches):
            return self._table.index_select(0, places)
        classes = torch.tensor(stretches)
        result = torch.empty(len(places), self._head_dim // 2, dtype=torch.complex64)
        for stretch in set(stretches):
            rows = classes == stretch
            frequency = frequencies(self._rope, self._head_dim, stretch)
            result[rows] = _turn(places[rows, None].double(), frequency, self._rope)
        return result


def interleave(rows: Tensor, head_dim: int) -> Tensor:
    """Reorder the rows of a projection ``[heads * head_dim, ...]`` from halves to pairs, head by head."""
    heads = rows.shape[0] // head_dim
    halves = rows.reshape(heads, 2, head_dim // 2, *rows.shape[1:])
    return halves.transpose(1, 2).reshape(rows.shape)


def rotate(x: Tensor, turn: Tensor) -> Tensor:
    """Rotate pairs: x ``[n, heads, head_dim]`` by turn ``[n, heads or 1, head_dim / 2]``."""
    pairs = torch.view_as_complex(x.view(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turn).view(x.shape)
