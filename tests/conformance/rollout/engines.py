"""The engines under the suite, and small policies for them. A vendor adds its engine to ENGINES.

``slots`` is small so that queueing happens.
"""

import json
from collections.abc import Callable

import torch
from safetensors.torch import save

from temper.rollout.engine.base import Engine, PolicyFiles
from temper.rollout.engine.fake import FakeEngine
from temper.rollout.engine.torch.engine import TorchEngine
from temper.runtime.clock import SystemClock

VOCAB, CONTEXT, SLOTS = 64, 96, 6

CONFIG = {
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}

ENGINES: dict[str, Callable[[], Engine]] = {
    "torch": lambda: TorchEngine(slots=SLOTS, max_context=CONTEXT, prefill_tokens=64),
    "fake": lambda: FakeEngine(SystemClock(), slots=SLOTS, max_context=CONTEXT),
}


def policy(version: int, seed: int = 0, config: dict[str, object] | None = None) -> PolicyFiles:
    """Random weights with spread-out logits, in the layout the trainer publishes."""
    generator = torch.Generator().manual_seed(seed)
    width, hidden, head = 32, 48, 8

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * 0.3

    tensors = {"model.embed_tokens.weight": normal(VOCAB, width), "lm_head.weight": normal(VOCAB, width)}
    tensors["model.norm.weight"] = torch.ones(width)
    for layer in range(2):
        prefix = f"model.layers.{layer}."
        for name, rows in (("q", 4 * head), ("k", 2 * head), ("v", 2 * head)):
            tensors[f"{prefix}self_attn.{name}_proj.weight"] = normal(rows, width)
        tensors[f"{prefix}self_attn.o_proj.weight"] = normal(width, 4 * head)
        tensors[f"{prefix}mlp.gate_proj.weight"] = normal(hidden, width)
        tensors[f"{prefix}mlp.up_proj.weight"] = normal(hidden, width)
        tensors[f"{prefix}mlp.down_proj.weight"] = normal(width, hidden)
        tensors[f"{prefix}input_layernorm.weight"] = torch.ones(width)
        tensors[f"{prefix}post_attention_layernorm.weight"] = torch.ones(width)
    return PolicyFiles(version, json.loads(json.dumps(config or CONFIG)), (save(tensors),))
