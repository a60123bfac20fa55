"""Tiny random policies of each family, as transformers makes them, and as the engine takes them."""

import json
from typing import Any

import torch
import transformers
from safetensors.torch import save

from temper.rollout.engine.base import PolicyFiles

VOCAB, CONTEXT = 96, 320

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-biased": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-3-rope": (
        "Llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 40,
            }
        },
    ),
    "llama-linear-rope": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0}},
    ),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
}


def reference(family: str, seed: int = 0) -> Any:
    """A random ``transformers`` model whose logits are spread out, and whose norms and biases are not trivial."""
    torch.manual_seed(seed)
    name, extra = FAMILIES[family]
    config = getattr(transformers, f"{name}Config")(
        vocab_size=VOCAB,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        **extra,
    )
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval().float()
    with torch.no_grad():
        for value in model.parameters():
            value.add_(torch.randn_like(value) * (0.2 if value.dim() == 1 else 0.08))
    return model


def files_of(model: Any, version: int = 1) -> PolicyFiles:
    """The published form of a ``transformers`` model."""
    tensors = {name: value.contiguous() for name, value in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    return PolicyFiles(version, json.loads(model.config.to_json_string()), (save(tensors),))
