"""Everything at once, at long positions, against ``transformers``: what is equal alone must be equal in company.

One engine with chunked prefill, prefix reuse, a shared prompt attended once, drafts, and sparse decode that reads every page;
one model for each kind of rotary scaling, and one with sliding windows.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.unit.rollout.test_models import VOCAB, check, check_step_by_step, model_of, rope, saved

from temper.rollout.engine.base import Completion, Request, Sampling
from temper.rollout.engine.torch.engine import TorchEngine
from temper.rollout.engine.torch.fast import Fast

LONG = 4096
LISTS = {"short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5], "long_factor": [2.0, 2.5, 3.0, 3.5, 4.0, 4.5]}
YARN = rope("yarn", factor=8.0, original_max_position_embeddings=512)
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 256}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "default": ("Qwen3", {"head_dim": 16, **rope("default")}),
    "linear": ("Llama", {"attention_bias": True, **rope("linear", factor=4.0)}),
    "llama3": ("Llama", rope("llama3", factor=8.0, **LLAMA3)),
    "yarn": ("Qwen2", {"tie_word_embeddings": True, **YARN}),
    "longrope": ("Llama", rope("longrope", factor=4.0, original_max_position_embeddings=512, **LISTS)),
    "dynamic": ("Llama", {"max_position_embeddings": 512, **rope("dynamic", factor=4.0)}),
    "windows": ("Qwen2", {"use_sliding_window": True, "sliding_window": 70, "max_window_layers": 1}),
}
FIRST = tuple((7 * i * i + i // 9) % VOCAB for i in range(1300))
SECOND = FIRST[:1200] + tuple((5 * i) % 7 for i in range(100))


async def play(model: Any, where: Path) -> tuple[list[Completion], int]:
    """One request alone, two of a group on a prompt that begins alike, one more that copies them; and the drafts it had."""
    engine = TorchEngine(
        max_context=LONG,
        prefill_tokens=256,
        batch_invariant=False,
        fast=Fast("suffix", sparse_threshold=1200, sparse_keep=1.0),
    )
    await engine.start()
    await engine.load(saved(model, where))
    await engine.swap(1)
    greedy = Sampling(5, temperature=0.0)
    first = await engine.submit(Request("first", FIRST, greedy, 0, 0))
    group = [engine.submit(Request(f"g{i}", SECOND, greedy, 0, i, group="g")) for i in range(2)]
    done = [first, *await asyncio.gather(*group)]
    done.append(await engine.submit(Request("late", SECOND, greedy, 0, 2, group="g")))
    proposed = engine.stats().drafts_proposed
    await engine.close()
    return done, proposed


@pytest.mark.parametrize("name", sorted(MODELS))
async def test_everything_together_equals_the_reference(name: str, tmp_path: Path):
    family, extra = MODELS[name]
    shape = {"max_position_embeddings": LONG, "num_hidden_layers": 2, **extra}
    model = model_of(family, shape)
    (first, *group), proposed = await play(model, tmp_path)
    moving = name == "dynamic"  # each longer context turns all positions anew: every step is a prefill
    look = check_step_by_step if moving else check
    look(model, FIRST, first)
    look(model, SECOND, group[0])
    for one in group:
        assert one.tokens == group[0].tokens
        assert one.logprobs_raw == pytest.approx(group[0].logprobs_raw, abs=1e-4)
        assert one.attention == ("dense" if moving else "sparse")
        assert moving or one.cached_tokens >= 1024
    assert moving or proposed > 0
