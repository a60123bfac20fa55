"""A policy of any size with random weights, for benchmarks of the rollout engine that need no peer."""

from __future__ import annotations

import torch
from safetensors.torch import save

from temper.rollout.engine.base import PolicyFiles


def random_policy(
    version: int,
    *,
    layers: int,
    width: int,
    heads: int,
    kv_heads: int,
    context: int,
    vocab: int = 512,
    head_dim: int = 32,
) -> PolicyFiles:
    """Llama layout; the same version gives the same numbers."""
    generator = torch.Generator().manual_seed(version)
    hidden = 2 * width

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * width**-0.5

    tensors = {"model.embed_tokens.weight": normal(vocab, width), "lm_head.weight": normal(vocab, width)}
    tensors["model.norm.weight"] = torch.ones(width)
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        for name, rows in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            tensors[f"{prefix}self_attn.{name}_proj.weight"] = normal(rows * head_dim, width)
        tensors[f"{prefix}self_attn.o_proj.weight"] = normal(width, heads * head_dim)
        tensors[f"{prefix}mlp.gate_proj.weight"] = normal(hidden, width)
        tensors[f"{prefix}mlp.up_proj.weight"] = normal(hidden, width)
        tensors[f"{prefix}mlp.down_proj.weight"] = normal(width, hidden)
        tensors[f"{prefix}input_layernorm.weight"] = torch.ones(width)
        tensors[f"{prefix}post_attention_layernorm.weight"] = torch.ones(width)
    config = {
        "model_type": "llama",
        "vocab_size": vocab,
        "hidden_size": width,
        "intermediate_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": context,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
    }
    return PolicyFiles(version, config, (save(tensors),))
