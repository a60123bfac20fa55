"""From Hugging Face names to Megatron's parameters and back, for any number of tensor-parallel parts.

Megatron fuses what a checkpoint keeps apart. One *slot* is one Megatron parameter:

    linear_qkv   per key-value group: its query heads, its key head, its value head; parts hold whole groups
    linear_fc1   gate and up, each split by rows; a part is [gate rows; up rows]
    rows, cols   split along the first or second dimension
    same         the same on every part

The same map carries weights, master weights and moments: they have one shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from temper.trainer.engine.torch.model import Decoder, DecoderConfig
from temper.trainer.engine.torch.storage import HEAD_PREFIX, named_weights

Get = Callable[[str], Tensor]
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
MOMENTS = ("exp_avg", "exp_avg_sq")
"""What Adam keeps of a parameter; each has the parameter's shape."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Where one Megatron parameter comes from."""

    name: str
    """Megatron's name, with the layer's number on this pipeline stage."""
    kind: str
    """qkv, gate_up, rows, cols or same."""
    sources: tuple[str, ...]
    """Hugging Face names."""


def slots(
    cfg: DecoderConfig, layers: range, *, start: int, first: bool, last: bool, copied: bool
) -> Iterator[Slot]:
    """Slots of ``layers`` on a pipeline stage whose first layer is ``start``, and where asked for of the ends of the model.

    ``copied``: a tied head is on another stage than the embedding, so it has a parameter of its own, kept equal by Megatron.
    """
    if first:
        yield Slot("embedding.word_embeddings.weight", "rows", (EMBEDDING,))
    for layer in layers:
        yield from _layer(cfg, f"decoder.layers.{layer - start}.", f"model.layers.{layer}.")
    if last:
        yield Slot("decoder.final_layernorm.weight", "same", ("model.norm.weight",))
        if not cfg.tied:
            yield Slot("output_layer.weight", "rows", (HEAD,))
        elif copied:
            yield Slot("output_layer.weight", "rows", (EMBEDDING,))


def head_slots() -> list[Slot]:
    """The scalar head of a value function or a reward model; no part of the policy."""
    return [Slot(name, "same", (name,)) for name in (f"{HEAD_PREFIX}weight", f"{HEAD_PREFIX}bias")]


def _layer(cfg: DecoderConfig, ours: str, theirs: str) -> Iterator[Slot]:
    attention, mlp = f"{theirs}self_attn.", f"{theirs}mlp."
    projections = [f"{attention}{each}_proj." for each in "qkv"]
    yield Slot(f"{ours}input_layernorm.weight", "same", (f"{theirs}input_layernorm.weight",))
    yield Slot(f"{ours}self_attention.linear_qkv.weight", "qkv", tuple(f"{p}weight" for p in projections))
    if cfg.family == "qwen2":
        yield Slot(f"{ours}self_attention.linear_qkv.bias", "qkv", tuple(f"{p}bias" for p in projections))
    yield Slot(f"{ours}self_attention.linear_proj.weight", "cols", (f"{attention}o_proj.weight",))
    if cfg.family == "qwen3":
        for each in "qk":
            yield Slot(
                f"{ours}self_attention.{each}_layernorm.weight", "same", (f"{attention}{each}_norm.weight",)
            )
    yield Slot(f"{ours}pre_mlp_layernorm.weight", "same", (f"{theirs}post_attention_layernorm.weight",))
    yield Slot(f"{ours}mlp.linear_fc1.weight", "gate_up", (f"{mlp}gate_proj.weight", f"{mlp}up_proj.weight"))
    yield Slot(f"{ours}mlp.linear_fc2.weight", "cols", (f"{mlp}down_proj.weight",))


def part(slot: Slot, get: Get, cfg: DecoderConfig, rank: int, parts: int) -> Tensor:
    """A rank's part of a slot."""
    given = [get(name) for name in slot.sources]
    match slot.kind:
        case "qkv":
            return torch.cat([each.chunk(parts)[rank] for each in _by_group(given, cfg)], dim=1).flatten(0, 1)
        case "gate_up":
            return torch.cat([each.chunk(parts)[rank] for each in given])
        case "rows":
            return given[0].chunk(parts)[rank]
        case "cols":
            return given[0].chunk(parts, dim=1)[rank]
        case _:
            return given[0]


def _by_group(given: Sequence[Tensor], cfg: DecoderConfig) -> list[Tensor]:
    """q, k and v as ``[group, rows of the group, ...]``."""
    return [each.reshape(cfg.kv_heads, -1, *each.shape[1:]) for each in given]


def whole(slot: Slot, shards: Sequence[Tensor], cfg: DecoderConfig) -> Mapping[str, Tensor]:
    """The inverse of ``part``: Hugging Face tensors from the parts of all ranks."""
    match slot.kind:
        case "qkv":
            heads = cfg.heads // cfg.kv_heads
            rows = [heads * cfg.head_dim, cfg.head_dim, cfg.head_dim]
            groups = torch.cat(list(shards)).unflatten(0, (cfg.kv_heads, sum(rows)))
            tensors = [each.flatten(0, 1) for each in groups.split(rows, dim=1)]
        case "gate_up":
            halves = [each.chunk(2) for each in shards]
            tensors = [torch.cat([half[k] for half in halves]) for k in range(2)]
        case "rows":
            tensors = [torch.cat(list(shards))]
        case "cols":
            tensors = [torch.cat(list(shards), dim=1)]
        case _:
            tensors = [shards[0]]
    return dict(zip(slot.sources, (each.contiguous() for each in tensors), strict=True))


@cache
def order(cfg: DecoderConfig) -> tuple[str, ...]:
    """Hugging Face names of the whole policy in the order in which it is published: the torch engine's."""
    with torch.device("meta"):
        return tuple(named_weights(Decoder(cfg), tied=cfg.tied))


@cache
def layer_bytes(cfg: DecoderConfig) -> int:
    """Bytes of one layer in fp32."""
    with torch.device("meta"):
        return sum(4 * param.numel() for param in Decoder(cfg).model.layers[0].parameters())
