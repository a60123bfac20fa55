"""The engines under the suite, what each of them declares, and small policies for them.

A vendor adds its engine to ENGINES. A capability that an engine does not declare must be refused by it; a test that
needs it is skipped with the reason. ``slots`` is small so that queueing happens.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass

import torch
from safetensors.torch import save
from tests.conformance.rollout.tensorrt_double import share_in_process

from temper.rollout.engine.base import Engine, PolicyFiles, SwapPolicy
from temper.rollout.engine.fake import FakeEngine
from temper.rollout.engine.tensorrt_llm.engine import TensorRtEngine
from temper.rollout.engine.tensorrt_llm.workers import Options
from temper.runtime.clock import SystemClock

VOCAB, CONTEXT, SLOTS = 64, 96, 6
ROOMY = 1 << 13  # tokens of a KV pool that never runs out
TIGHT_CONTEXT = 320  # context limit of engines whose pool runs out

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

OPTIONS = frozenset({"penalties", "logit_bias", "top_logprobs", "prompt_logprobs"})


@dataclass(frozen=True, slots=True)
class Kind:
    """One engine."""

    make: Callable[[int, int], Engine]
    """From the tokens of its KV pool and the context limit to an engine."""
    tight: int
    """Tokens of the smallest pool that can hold a context of TIGHT_CONTEXT."""
    can: frozenset[str]
    """Capabilities: OPTIONS; ``stream``; ``pause``; ``blocks`` (tells its pool's book); ``pool`` (takes the pool's size);
    ``positions`` (the random number of a token depends on its position, wherever the prompt ends);
    ``kept_kv`` (a kept sequence's KV is reused to the token)."""
    policies: frozenset[SwapPolicy]
    """Swap policies it can honour while sequences run."""


def make_torch(kv_tokens: int, context: int) -> Engine:
    from temper.rollout.engine.torch.engine import TorchEngine  # imported when asked for, as the service does

    return TorchEngine(slots=SLOTS, max_context=context, prefill_tokens=64, kv_tokens=kv_tokens)


def make_fake(kv_tokens: int, context: int) -> Engine:
    return FakeEngine(SystemClock(), slots=SLOTS, max_context=context, kv_tokens=kv_tokens)


def make_tensorrt(_: int, context: int) -> Engine:
    options = Options(slots=SLOTS, max_context=context, prefill_tokens=64, tensor_parallel=2)
    return TensorRtEngine(SystemClock(), options, share=share_in_process)


ENGINES: dict[str, Kind] = {
    "torch": Kind(
        make_torch,
        2 * 768,
        OPTIONS | {"stream", "pause", "blocks", "pool", "positions", "kept_kv"},
        frozenset(SwapPolicy),
    ),
    "fake": Kind(
        make_fake,
        TIGHT_CONTEXT + 32,
        OPTIONS | {"stream", "pause", "blocks", "pool", "positions", "kept_kv"},
        frozenset(SwapPolicy),
    ),
    "tensorrt_llm": Kind(  # on the double
        make_tensorrt,
        TIGHT_CONTEXT,
        frozenset({"top_logprobs", "stream", "pause"}),
        frozenset(SwapPolicy) - {SwapPolicy.KEEP},
    ),
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


def seeded(version: int) -> PolicyFiles:
    """A version with weights of its own."""
    return policy(version, seed=version)
