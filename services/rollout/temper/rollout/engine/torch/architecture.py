"""Shapes and switches of a Llama, Qwen2 or Qwen3 decoder, read from ``config.json``."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from temper.runtime.errors import Rejected

SUPPORTED = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding: base frequency and how it is stretched."""

    theta: float
    """Base of the frequencies."""
    kind: str
    """``default``, ``linear``, ``dynamic`` (NTK), ``yarn``, ``llama3`` or ``longrope``."""
    factor: float = 1.0
    """Stretch of the context."""
    original_length: int = 0
    """Context length before stretching; all kinds but default and linear."""
    low_factor: float = 1.0
    """Below original_length / low_factor rotations the frequency is divided; llama3 only."""
    high_factor: float = 4.0
    """Above original_length / high_factor rotations the frequency stays; llama3 only."""
    attention_factor: float = 1.0
    """Multiplies q and k; yarn and longrope only."""
    beta_fast: float = 32.0
    """Frequencies with more turns than this over the original length stay; yarn only."""
    beta_slow: float = 1.0
    """Frequencies with fewer turns than this are divided by the factor; yarn only."""
    truncate: bool = True
    """Whether the ends of the ramp are rounded to whole indices; yarn only."""
    short_factors: tuple[float, ...] = ()
    """Per frequency, its divisor up to the original length; longrope only."""
    long_factors: tuple[float, ...] = ()
    """Per frequency, its divisor beyond the original length; longrope only."""


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
    """``max_position_embeddings``; with dynamic and yarn scaling, what the stretch makes of it."""
    rope: RopeConfig
    """Rotary embedding."""
    windows: tuple[int, ...]
    """Per layer, how many tokens back a query sees, itself included; 0 is all of them."""

    def kv_key(self, stretch: int = 0) -> bytes:
        """Digest of all that shapes keys and values besides tokens and weights: equal or KV may not be shared.

        ``stretch`` is the class of the context's length, see :meth:`.rope.Rotary.stretch`.
        """
        return _digest(self, stretch)


def read_architecture(config: Mapping[str, Any]) -> Architecture:
    """Turn ``config.json`` into an :class:`Architecture`. Raises ``Rejected`` naming the field that is at fault."""
    kind = config.get("model_type")
    if kind not in SUPPORTED:
        raise Rejected(f"config.json: model_type {kind!r} is not one of {sorted(SUPPORTED)}")
    if config.get("hidden_act", "silu") != "silu":
        raise Rejected(f"config.json: hidden_act {config['hidden_act']!r} is not supported, only 'silu'")
    heads, width = _positive(config, "num_attention_heads"), _positive(config, "hidden_size")
    head_dim = int(config.get("head_dim") or width // heads)
    attention_bias = bool(config.get("attention_bias", False))
    rope = read_rope(config, head_dim)
    shape = Architecture(
        vocab=_positive(config, "vocab_size"),
        layers=_positive(config, "num_hidden_layers"),
        width=width,
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=head_dim,
        hidden=_positive(config, "intermediate_size"),
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        qkv_bias=attention_bias or kind == "qwen2",
        output_bias=attention_bias and kind != "qwen2",
        mlp_bias=bool(config.get("mlp_bias", False)) and kind == "llama",
        qk_norm=kind == "qwen3",
        tied=bool(config.get("tie_word_embeddings", False)),
        max_context=_longest(config, rope),
        rope=rope,
        windows=_read_windows(config, kind),
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


def _longest(config: Mapping[str, Any], rope: RopeConfig) -> int:
    """Configs of stretched models name the length before stretching (dynamic) or either of the two (yarn)."""
    named = _positive(config, "max_position_embeddings")
    if rope.kind not in ("dynamic", "yarn"):
        return named
    return max(named, int(rope.original_length * rope.factor))


def read_rope(config: Mapping[str, Any], head_dim: int) -> RopeConfig:
    """Read both spellings: ``rope_theta`` + ``rope_scaling`` (transformers 4) and ``rope_parameters`` (5)."""
    name = "rope_parameters" if config.get("rope_parameters") else "rope_scaling"
    scaling: Mapping[str, Any] = config.get(name) or {}
    theta = float(scaling.get("rope_theta") or config.get("rope_theta") or 10000.0)
    kind = str(scaling.get("rope_type") or scaling.get("type") or "default")
    if any(isinstance(value, Mapping) for value in scaling.values()):
        raise Rejected(f"config.json: {name} differs by layer type, which is not supported")
    if scaling.get("partial_rotary_factor", config.get("partial_rotary_factor") or 1.0) != 1.0:
        raise Rejected("config.json: partial_rotary_factor must be 1")
    if kind not in _ROPE_READERS:
        raise Rejected(f"config.json: {name}: rope type {kind!r} is not one of {sorted(_ROPE_READERS)}")
    # Phi-3 writes the original length beside the scaling; transformers lets that one win.
    original = config.get("original_max_position_embeddings") or scaling.get(
        "original_max_position_embeddings"
    )
    longest = _positive(config, "max_position_embeddings")
    fields = _Scaling(name, kind, scaling, int(original or longest), longest, head_dim)
    return _ROPE_READERS[kind](theta, fields)


@dataclass(frozen=True, slots=True)
class _Scaling:
    """The part of ``config.json`` that describes one kind of scaling."""

    name: str
    kind: str
    values: Mapping[str, Any]
    original: int
    longest: int
    head_dim: int

    def number(self, key: str, default: float | None = None) -> float:
        value = self.values.get(key)
        value = default if value is None else value
        if not isinstance(value, int | float) or value <= 0:
            wrong = "is missing" if value is None else f"must be a positive number, got {value!r}"
            raise Rejected(f"config.json: {self.name}.{key} {wrong} (rope type {self.kind!r})")
        return float(value)

    def stretch(self) -> float:
        """``factor``, else how much longer the context became, if the config tells both lengths."""
        return self.number("factor", self.longest / self.original if self.longest > self.original else None)

    def divisors(self, key: str) -> tuple[float, ...]:
        values = self.values.get(key)
        if not isinstance(values, list) or len(values) != self.head_dim // 2:
            raise Rejected(f"config.json: {self.name}.{key} must list {self.head_dim // 2} numbers")
        return tuple(map(float, values))


def _yarn(theta: float, at: _Scaling) -> RopeConfig:
    factor = at.stretch()

    def attention(scale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0

    mscale, everywhere = at.values.get("mscale"), at.values.get("mscale_all_dim")
    usual = attention(mscale) / attention(everywhere) if mscale and everywhere else attention(1.0)
    return RopeConfig(
        theta,
        at.kind,
        factor,
        at.original,
        attention_factor=at.number("attention_factor", usual),
        beta_fast=at.number("beta_fast", 32.0),
        beta_slow=at.number("beta_slow", 1.0),
        truncate=bool(at.values.get("truncate", True)),
    )


def _longrope(theta: float, at: _Scaling) -> RopeConfig:
    factor = at.stretch()
    usual = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(at.original))
    return RopeConfig(
        theta,
        at.kind,
        factor,
        at.original,
        attention_factor=at.number("attention_factor", usual),
        short_factors=at.divisors("short_factor"),
        long_factors=at.divisors("long_factor"),
    )


def _llama3(theta: float, at: _Scaling) -> RopeConfig:
    low, high = at.number("low_freq_factor"), at.number("high_freq_factor")
    return RopeConfig(theta, at.kind, at.number("factor"), at.original, low, high)


_ROPE_READERS: dict[str, Callable[[float, _Scaling], RopeConfig]] = {
    "default": lambda theta, at: RopeConfig(theta, at.kind),
    "linear": lambda theta, at: RopeConfig(theta, at.kind, at.number("factor")),
    # Dynamic NTK stretches from max_position_embeddings on; transformers reads no other length for it.
    "dynamic": lambda theta, at: RopeConfig(theta, at.kind, at.number("factor"), at.longest),
    "yarn": _yarn,
    "llama3": _llama3,
    "longrope": _longrope,
}


def _read_windows(config: Mapping[str, Any], kind: str) -> tuple[int, ...]:
    """Sliding windows as transformers reads them: by ``layer_types``, or from layer ``max_window_layers`` on."""
    layers = _positive(config, "num_hidden_layers")
    types = config.get("layer_types")
    if not config.get("use_sliding_window"):
        if isinstance(types, list) and "sliding_attention" in types:
            raise Rejected(
                "config.json: layer_types names sliding_attention, but use_sliding_window is not set"
            )
        return (0,) * layers
    if kind == "llama":
        raise Rejected("config.json: use_sliding_window is not part of model_type 'llama'; set it to false")
    window = _positive(config, "sliding_window")
    if types is None:
        first = int(config.get("max_window_layers", 28))  # the default of transformers
        return tuple(window if layer >= first else 0 for layer in range(layers))
    known = {"full_attention": 0, "sliding_attention": window}
    if not isinstance(types, list) or len(types) != layers or not set(types) <= known.keys():
        raise Rejected(
            f"config.json: layer_types must list {sorted(known)} for {layers} layers, got {types!r}"
        )
    return tuple(known[one] for one in types)


@lru_cache(maxsize=64)
def _digest(shape: Architecture, stretch: int) -> bytes:
    return hashlib.sha256(repr((shape, stretch)).encode()).digest()
