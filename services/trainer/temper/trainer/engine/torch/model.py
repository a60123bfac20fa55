"""Decoder-only transformers of the Llama, Qwen2 and Qwen3 families, with Hugging Face parameter names.

The module tree is laid out so that ``state_dict()`` keys *are* the names in a Hugging Face checkpoint. Batches are packed:
several sequences share one row, and an explicit mask keeps them apart, so the model itself knows nothing of samples.

Shapes: ``[row, col]`` for token ids and positions, ``[row, 1, col, col]`` for the attention mask (True = may look).
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name everybody uses

from temper.runtime.errors import Rejected

FAMILIES = ("llama", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """The fields of a ``config.json`` that change the computation."""

    family: str
    """``model_type``: llama, qwen2 (biases on q, k, v) or qwen3 (RMSNorm on q and k heads)."""
    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    max_positions: int
    rope_theta: float
    norm_eps: float
    tied: bool
    """Whether ``lm_head`` is the embedding matrix."""
    init_std: float


def parse_config(raw: dict[str, Any]) -> DecoderConfig:
    """Read a Hugging Face ``config.json``. Raises Rejected for what this engine cannot compute."""
    family = str(raw.get("model_type", ""))
    if family not in FAMILIES:
        raise Rejected(
            f"model_type {family!r} is not one of {', '.join(FAMILIES)}", field="config.json:model_type"
        )
    _refuse_unsupported(raw)
    rope = raw.get("rope_parameters") or {}
    heads = _needed(raw, "num_attention_heads")
    return DecoderConfig(
        family=family,
        vocab_size=_needed(raw, "vocab_size"),
        hidden_size=_needed(raw, "hidden_size"),
        layers=_needed(raw, "num_hidden_layers"),
        heads=heads,
        kv_heads=int(raw.get("num_key_value_heads") or heads),
        head_dim=int(raw.get("head_dim") or _needed(raw, "hidden_size") // heads),
        intermediate_size=_needed(raw, "intermediate_size"),
        max_positions=int(raw.get("max_position_embeddings", 2048)),
        rope_theta=float(raw.get("rope_theta") or rope.get("rope_theta", 10000.0)),
        norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        tied=bool(raw.get("tie_word_embeddings", False)),
        init_std=float(raw.get("initializer_range", 0.02)),
    )


def require_teacher(teacher: DecoderConfig, policy: DecoderConfig) -> None:
    """Raises Rejected for a shape whose log-probabilities of the policy's samples would mean nothing."""
    if teacher.vocab_size != policy.vocab_size:
        raise Rejected(
            f"a vocabulary of {teacher.vocab_size} tokens, the policy's has {policy.vocab_size}",
            hint="teacher and student share a tokenizer",
        )
    if teacher.max_positions < policy.max_positions:
        raise Rejected(
            f"{teacher.max_positions} positions, the policy has {policy.max_positions}",
            hint="a teacher reads everything that its student writes",
        )


def _needed(raw: dict[str, Any], name: str) -> int:
    if name not in raw:
        raise Rejected(f"config.json has no {name}", field=f"config.json:{name}")
    return int(raw[name])


def _refuse_unsupported(raw: dict[str, Any]) -> None:
    """A field that would change the logits and that we would ignore is an error, not a surprise."""
    scaling = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    if scaling.get("rope_type", scaling.get("type", "default")) != "default":
        raise Rejected("scaled rotary embeddings are not supported", field="config.json:rope_scaling")
    if raw.get("use_sliding_window"):
        raise Rejected("sliding-window attention is not supported", field="config.json:use_sliding_window")
    if raw.get("hidden_act", "silu") != "silu":
        raise Rejected("only SwiGLU (silu) is supported", field="config.json:hidden_act")
    if raw.get("attention_bias") or raw.get("mlp_bias"):
        raise Rejected("attention and mlp biases are not supported", field="config.json:attention_bias")


class RMSNorm(nn.Module):
    """``x / rms(x) * weight`` over the last dimension."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding in the half-split layout of Hugging Face checkpoints. ``x`` is [row, head, col, head_dim]."""
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


class Attention(nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, cfg: DecoderConfig) -> None:
        super().__init__()
        bias = cfg.family == "qwen2"
        self.head_dim = cfg.head_dim
        self.q_proj = nn.Linear(cfg.hidden_size, cfg.heads * cfg.head_dim, bias=bias)
        self.k_proj = nn.Linear(cfg.hidden_size, cfg.kv_heads * cfg.head_dim, bias=bias)
        self.v_proj = nn.Linear(cfg.hidden_size, cfg.kv_heads * cfg.head_dim, bias=bias)
        self.o_proj = nn.Linear(cfg.heads * cfg.head_dim, cfg.hidden_size, bias=False)
        normed = cfg.family == "qwen3"
        self.q_norm = RMSNorm(cfg.head_dim, cfg.norm_eps) if normed else nn.Identity()
        self.k_norm = RMSNorm(cfg.head_dim, cfg.norm_eps) if normed else nn.Identity()

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        rows, cols, _ = x.shape
        shape = (rows, cols, -1, self.head_dim)
        query = _rotate(self.q_norm(self.q_proj(x).view(shape)).transpose(1, 2), cos, sin)
        key = _rotate(self.k_norm(self.k_proj(x).view(shape)).transpose(1, 2), cos, sin)
        value = self.v_proj(x).view(shape).transpose(1, 2)
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).reshape(rows, cols, -1))


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, cfg: DecoderConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(cfg.hidden_size, cfg.intermediate_size, bias=False)
        self.up_proj = nn.Linear(cfg.hidden_size, cfg.intermediate_size, bias=False)
        self.down_proj = nn.Linear(cfg.intermediate_size, cfg.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """One pre-norm decoder layer."""

    def __init__(self, cfg: DecoderConfig) -> None:
        super().__init__()
        self.self_attn = Attention(cfg)
        self.mlp = MLP(cfg)
        self.input_layernorm = RMSNorm(cfg.hidden_size, cfg.norm_eps)
        self.post_attention_layernorm = RMSNorm(cfg.hidden_size, cfg.norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Trunk(nn.Module):
    """Embedding, layers and final norm: everything under the ``model.`` prefix of a checkpoint."""

    def __init__(self, cfg: DecoderConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(cfg.vocab_size, cfg.hidden_size)
        self.layers = nn.ModuleList(Layer(cfg) for _ in range(cfg.layers))
        self.norm = RMSNorm(cfg.hidden_size, cfg.norm_eps)
        frequency = cfg.rope_theta ** (-torch.arange(0, cfg.head_dim, 2).float() / cfg.head_dim)
        angle = torch.arange(cfg.max_positions).float()[:, None] * frequency
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, ids: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """Hidden states ``[row, col, hidden]`` after the final norm."""
        x = self.embed_tokens(ids)
        cos = self.get_buffer("cos")[positions][:, None]
        sin = self.get_buffer("sin")[positions][:, None]
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        return self.norm(x)


class Decoder(nn.Module):
    """A causal language model whose ``state_dict()`` has Hugging Face names."""

    def __init__(self, cfg: DecoderConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.model = Trunk(cfg)
        self.lm_head = nn.Linear(cfg.hidden_size, cfg.vocab_size, bias=False)
        if cfg.tied:
            self.lm_head.weight = self.model.embed_tokens.weight
        self.value_head: nn.Linear | None = None

    def grow_head(self, *, bias: bool) -> None:
        """Put a scalar head on the trunk: zero at first, so that it disturbs nothing."""
        like = self.lm_head.weight
        self.value_head = nn.Linear(self.cfg.hidden_size, 1, bias=bias, device=like.device, dtype=like.dtype)
        for param in self.value_head.parameters():
            nn.init.zeros_(param)

    def judge(self, hidden: Tensor) -> Tensor:
        """``[n]`` what the scalar head says about hidden states ``[n, hidden]``."""
        if self.value_head is None:
            raise Rejected("the policy has no value head", hint="begin a phase that needs one")
        return self.value_head(hidden)[:, 0].float()

    def initialise(self, generator: torch.Generator) -> None:
        """Draw matrices from N(0, init_std); norms start at one and biases at zero."""
        for name, param in self.named_parameters():
            if param.dim() > 1:
                nn.init.normal_(param, 0.0, self.cfg.init_std, generator=generator)
            else:
                nn.init.constant_(param, 1.0 if "norm" in name else 0.0)

    def hidden(self, ids: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """Hidden states ``[row, col, hidden]``; the caller applies ``lm_head`` only where logits are wanted."""
        return self.model(ids, positions, mask)
