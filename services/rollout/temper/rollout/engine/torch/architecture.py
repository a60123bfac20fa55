"""Shapes and switches of a Llama, Qwen2 or Qwen3 decoder, read from ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from temper.runtime.errors import Rejected

SUPPORTED = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding: base frequency and how it is stretched."""

    theta: float
    """Base of the frequencies."""
    kind: str
    """``default``, ``linear`` or ``llama3``."""
    factor: float = 1.0
    """Stretch of the context."""
    original_length: int = 0
    """Context length before stretching; llama3 only."""
    low_factor: float = 1.0
    """Below original_length / low_factor rotations the frequency is divided; llama3 only."""
    high_factor: float = 4.0
    """Above original_length / high_factor rotations the frequency stays; llama3 only."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """What :mod:`.model` needs to know about a policy."""

    vocab: int
    """Rows of the embedding."""
    layers: int
    """Decoder blocks."""
    width: int
    """Residual stream."""
    heads: int
    """Query heads."""
    kv_heads: int
    """Key/value heads; divides ``heads``."""
    head_dim: int
    """Width of a head; even."""
    hidden: int
    """Width of the SwiGLU block."""
    norm_eps: float
    """Epsilon of RMSNorm."""
    qkv_bias: bool
    """Biases on q, k, v projections (Qwen2, or ``attention_bias``)."""
    output_bias: bool
    """Bias on the attention output (``attention_bias`` of Llama)."""
    mlp_bias: bool
    """Biases in the SwiGLU block."""
    qk_norm: bool
    """RMSNorm on each query and key head (Qwen3)."""
    tied: bool
    """The output head is the embedding."""
    max_context: int
    """``max_position_embeddings``."""
    rope: RopeConfig
    """Rotary embedding."""


def read_architecture(config: Mapping[str, Any]) -> Architecture:
    """Turn ``config.json`` into an :class:`Architecture`. Raises ``Rejected`` naming the field that is at fault."""
    kind = config.get("model_type")
    if kind not in SUPPORTED:
        raise Rejected(f"config.json: model_type {kind!r} is not one of {sorted(SUPPORTED)}")
    if config.get("hidden_act", "silu") != "silu":
        raise Rejected(f"config.json: hidden_act {config['hidden_act']!r} is not supported, only 'silu'")
    if config.get("use_sliding_window"):
        raise Rejected("config.json: use_sliding_window is not supported; set it to false")
    heads, width = _positive(config, "num_attention_heads"), _positive(config, "hidden_size")
    attention_bias = bool(config.get("attention_bias", False))
    shape = Architecture(
        vocab=_positive(config, "vocab_size"),
        layers=_positive(config, "num_hidden_layers"),
        width=width,
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or width // heads),
        hidden=_positive(config, "intermediate_size"),
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        qkv_bias=attention_bias or kind == "qwen2",
        output_bias=attention_bias and kind != "qwen2",
        mlp_bias=bool(config.get("mlp_bias", False)) and kind == "llama",
        qk_norm=kind == "qwen3",
        tied=bool(config.get("tie_word_embeddings", False)),
        max_context=_positive(config, "max_position_embeddings"),
        rope=_read_rope(config),
    )
    if shape.heads % shape.kv_heads:
        raise Rejected(
            f"config.json: num_key_value_heads {shape.kv_heads} does not divide {shape.heads} heads"
        )
    if shape.head_dim % 2:
        raise Rejected(f"config.json: head_dim {shape.head_dim} must be even for rotary embeddings")
    return shape


def _positive(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or value <= 0:
        raise Rejected(f"config.json: {key} must be a positive integer, got {value!r}")
    return value


def _read_rope(config: Mapping[str, Any]) -> RopeConfig:
    """Read both spellings: ``rope_theta`` + ``rope_scaling`` (transformers 4) and ``rope_parameters`` (5)."""
    scaling: Mapping[str, Any] = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = float(scaling.get("rope_theta") or config.get("rope_theta") or 10000.0)
    kind = str(scaling.get("rope_type") or scaling.get("type") or "default")
    if kind == "default":
        return RopeConfig(theta, kind)
    if kind == "linear":
        return RopeConfig(theta, kind, float(scaling["factor"]))
    if kind == "llama3":
        return RopeConfig(
            theta,
            kind,
            float(scaling["factor"]),
            int(scaling["original_max_position_embeddings"]),
            float(scaling["low_freq_factor"]),
            float(scaling["high_freq_factor"]),
        )
    raise Rejected(f"config.json: rope type {kind!r} is not one of ['default', 'linear', 'llama3']")
