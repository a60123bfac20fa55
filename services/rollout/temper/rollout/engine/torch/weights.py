"""From safetensors bytes to fused fp32 tensors, every name and shape checked."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse_safetensors
from torch import Tensor

from temper.rollout.engine.torch import rope
from temper.rollout.engine.torch.architecture import Architecture
from temper.runtime.errors import Rejected


class Linear(Protocol):
    """A matrix ``[in, out]`` that knows how to multiply itself."""

    def __call__(self, x: Tensor, addend: Tensor | None = None) -> Tensor:
        """``x [rows, in]`` to ``[rows, out]``, plus a bias or a residual."""
        ...


Matrix: TypeAlias = Tensor | Linear


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder block. Projections are ``[in, out]``, ready for ``addmm``."""

    attention_norm: Tensor
    """``[width]``"""
    qkv: Matrix
    """``[width, (heads + 2 kv_heads) * head_dim]``; q and k rows interleaved for the complex rotation."""
    qkv_bias: Tensor
    """``[(heads + 2 kv_heads) * head_dim]``; zeros when the model has none."""
    qk_norm: Tensor | None
    """``[heads + kv_heads, head_dim]``: the q weight repeated, then the k weight repeated."""
    output: Matrix
    """``[heads * head_dim, width]``"""
    output_bias: Tensor | None
    """``[width]``"""
    mlp_norm: Tensor
    """``[width]``"""
    gate_up: Matrix
    """``[width, 2 hidden]``: gate, then up."""
    gate_up_bias: Tensor | None
    """``[2 hidden]``"""
    down: Matrix
    """``[hidden, width]``"""
    down_bias: Tensor | None
    """``[width]``"""


@dataclass(frozen=True, slots=True)
class Weights:
    """One version of a policy, immutable: a swap replaces the reference."""

    version: int
    """Weight version."""
    embedding: Tensor
    """``[vocab, width]``"""
    layers: tuple[Layer, ...]
    """In order."""
    norm: Tensor
    """``[width]``"""
    head: Matrix
    """``[width, vocab]``"""


_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def read_weights(shape: Architecture, shards: Iterable[bytes], version: int) -> Weights:
    """Parse, check and fuse; what is stored in 16 bits becomes fp32, which changes no value.

    Raises ``Rejected`` naming the first tensor that is missing, extra, misshapen, cut short, of another type than
    floating point, or not finite.
    """
    tensors = _Named(_parse(shards))
    width, vocab = shape.width, shape.vocab
    embedding = tensors.take("model.embed_tokens.weight", vocab, width)
    layers = tuple(_read_layer(shape, tensors, index) for index in range(shape.layers))
    norm = tensors.take("model.norm.weight", width)
    if shape.tied:
        tensors.drop("lm_head.weight")
        head = embedding
    else:
        head = tensors.take("lm_head.weight", vocab, width)
    tensors.expect_empty()
    return Weights(version, embedding, layers, norm, head.t().contiguous())


def _parse(shards: Iterable[bytes]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for number, shard in enumerate(shards):
        try:
            tensors = parse_safetensors(shard)
        except SafetensorError as error:
            what = _cut_short(shard) or f"it is not a safetensors file: {error}"
            raise Rejected(f"weights: shard {number}: {what}") from error
        for name, tensor in tensors.items():
            if name in found:
                raise Rejected(f"weights: tensor {name} is in two shards")
            found[name] = _checked(name, tensor)
    return found


def _checked(name: str, tensor: Tensor) -> Tensor:
    if tensor.dtype not in _FLOATS:
        kind = str(tensor.dtype).removeprefix("torch.")
        raise Rejected(f"weights: tensor {name} is {kind}; only float32, bfloat16 and float16 are understood")
    if not bool(torch.isfinite(tensor).all()):
        raise Rejected(f"weights: tensor {name} has numbers that are not finite")
    return tensor.to(torch.float32)


def _cut_short(shard: bytes) -> str | None:
    """The first tensor of a file whose end is missing; None when the file is broken in another way."""
    length = int.from_bytes(shard[:8], "little")
    try:
        header = json.loads(shard[8 : 8 + length])
        ends = {name: at["data_offsets"][1] for name, at in header.items() if name != "__metadata__"}
        behind = min((end, name) for name, end in ends.items() if end > len(shard) - 8 - length)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):  # also: nothing lies behind the end
        return None
    return f"tensor {behind[1]} is cut short, {behind[0] - (len(shard) - 8 - length)} bytes are missing"


def _read_layer(shape: Architecture, tensors: _Named, index: int) -> Layer:
    prefix, width, hidden = f"model.layers.{index}.", shape.width, shape.hidden
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    rows, biases = [], []
    for name, size in (("q", query), ("k", key), ("v", key)):
        row = tensors.take(f"{prefix}self_attn.{name}_proj.weight", size, width)
        bias = tensors.optional(f"{prefix}self_attn.{name}_proj.bias", shape.qkv_bias, size)
        bias = torch.zeros(size) if bias is None else bias
        turns = name != "v"  # values are not rotated
        rows.append(rope.interleave(row, shape.head_dim) if turns else row)
        biases.append(rope.interleave(bias, shape.head_dim) if turns else bias)
    gate = tensors.take(f"{prefix}mlp.gate_proj.weight", hidden, width)
    up = tensors.take(f"{prefix}mlp.up_proj.weight", hidden, width)
    gate_bias = tensors.optional(f"{prefix}mlp.gate_proj.bias", shape.mlp_bias, hidden)
    up_bias = tensors.optional(f"{prefix}mlp.up_proj.bias", shape.mlp_bias, hidden)
    return Layer(
        attention_norm=tensors.take(f"{prefix}input_layernorm.weight", width),
        qkv=torch.cat(rows).t().contiguous(),
        qkv_bias=torch.cat(biases),
        qk_norm=_read_qk_norm(shape, tensors, prefix),
        output=tensors.take(f"{prefix}self_attn.o_proj.weight", width, query).t().contiguous(),
        output_bias=tensors.optional(f"{prefix}self_attn.o_proj.bias", shape.output_bias, width),
        mlp_norm=tensors.take(f"{prefix}post_attention_layernorm.weight", width),
        gate_up=torch.cat([gate, up]).t().contiguous(),
        gate_up_bias=None if gate_bias is None or up_bias is None else torch.cat([gate_bias, up_bias]),
        down=tensors.take(f"{prefix}mlp.down_proj.weight", width, hidden).t().contiguous(),
        down_bias=tensors.optional(f"{prefix}mlp.down_proj.bias", shape.mlp_bias, width),
    )


def _read_qk_norm(shape: Architecture, tensors: _Named, prefix: str) -> Tensor | None:
    if not shape.qk_norm:
        return None
    query = rope.interleave(tensors.take(f"{prefix}self_attn.q_norm.weight", shape.head_dim), shape.head_dim)
    key = rope.interleave(tensors.take(f"{prefix}self_attn.k_norm.weight", shape.head_dim), shape.head_dim)
    return torch.cat([query.expand(shape.heads, -1), key.expand(shape.kv_heads, -1)]).contiguous()


class _Named:
    """Tensors by name; each is taken once, and its shape is checked when it is."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self._left = tensors

    def take(self, name: str, *shape: int) -> Tensor:
        tensor = self._left.pop(name, None)
        if tensor is None:
            raise Rejected(f"weights: tensor {name} is missing")
        if tensor.shape != shape:
            raise Rejected(
                f"weights: tensor {name} is {list(tensor.shape)}, config.json asks for {list(shape)}"
            )
        return tensor

    def optional(self, name: str, present: bool, *shape: int) -> Tensor | None:
        return self.take(name, *shape) if present else None

    def drop(self, name: str) -> None:
        self._left.pop(name, None)

    def expect_empty(self) -> None:
        if self._left:
            raise Rejected(f"weights: tensor {min(self._left)} is not part of this architecture")
