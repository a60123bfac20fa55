"""One sequence at a time: the torch engine against Hugging Face ``generate``, and against the memory it has to read.

*Stream*: same weights (about 25M parameters), same prompt, greedy, fp32, one thread, CPU time of this process in turns A B A B, prefill
included; the ratio is the median over turns. Tokens must be equal. Both numeric modes are shown: ``rollout_stream`` is the engine without
batch invariance, ``rollout_stream_exact`` is its default, whose rows are padded so that they have the same bits in any batch.

*Bytes*: weights and KV that a decode step must read, over its CPU time, against a plain sum over as many bytes in the same
process. The step is the difference of a long and a short output, so neither prefill nor admission is in it.

    python -m bench.rollout_stream
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
from typing import Any

import torch
import transformers
from safetensors.torch import save

from bench.result import report
from temper.rollout.engine.base import PolicyFiles, Request, Sampling
from temper.rollout.engine.torch.engine import TorchEngine

STREAM_FLOOR, STREAM_GOOD = 1.0, 1.3
BYTES_FLOOR, BYTES_GOOD = 0.5, 0.8
LAYERS, WIDTH, HIDDEN, HEADS, KV_HEADS, HEAD_DIM = 8, 512, 1408, 8, 4, 64
PROMPT, OUTPUT, SHORT = 64, 96, 16
MODES = {"free": False, "exact": True}  # batch_invariant


def make_model() -> Any:
    """Random weights; the seed is fixed."""
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=512,
        hidden_size=WIDTH,
        intermediate_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
    )
    return transformers.Qwen3ForCausalLM(config).eval().float()


async def start(model: Any, *, batch_invariant: bool) -> TorchEngine:
    """An engine that serves the model."""
    tensors = {name: value.contiguous() for name, value in model.state_dict().items()}
    engine = TorchEngine(slots=1, max_context=512, kv_tokens=4096, batch_invariant=batch_invariant)
    await engine.start()
    await engine.load(PolicyFiles(0, json.loads(model.config.to_json_string()), (save(tensors),)))
    await engine.swap(0)
    return engine


async def ours(engine: TorchEngine, prompt: list[int], output: int, turn: int) -> tuple[float, list[int]]:
    """CPU seconds and tokens. Every call is a tenant of its own, so no turn finds the prompt of the one before."""
    begun = time.process_time()
    sampling = Sampling(output, temperature=0.0)
    name = f"{turn}-{output}"
    done = await engine.submit(Request(name, tuple(prompt), sampling, 0, 0, tenant=name))
    return time.process_time() - begun, list(done.tokens)


def theirs(model: Any, prompt: list[int]) -> tuple[float, list[int]]:
    """The same of the peer."""
    begun = time.process_time()
    with torch.inference_mode():
        made = model.generate(
            input_ids=torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False,
            min_new_tokens=OUTPUT,
            max_new_tokens=OUTPUT,
            pad_token_id=0,
            eos_token_id=None,
        )
    return time.process_time() - begun, made[0, len(prompt) :].tolist()


def bytes_per_step(model: Any) -> int:
    """Weights but one table of embeddings, and keys and values of the mean context of the measured steps."""
    weights = sum(value.numel() for value in model.state_dict().values()) - 512 * WIDTH
    context = PROMPT + (SHORT + OUTPUT) // 2
    return 4 * (weights + context * LAYERS * 2 * KV_HEADS * HEAD_DIM)


def read(memory: torch.Tensor) -> float:
    """CPU seconds of a sum over all of it."""
    begun = time.process_time()
    memory.sum()
    return time.process_time() - begun


async def measure(turns: int) -> None:
    """All sides in every turn; the first warms them and does not count."""
    load = os.getloadavg()[0]
    model = make_model()
    engines = {name: await start(model, batch_invariant=exact) for name, exact in MODES.items()}
    memory = torch.ones(bytes_per_step(model) // 4)
    gains: dict[str, list[float]] = {name: [] for name in engines}
    shares: dict[str, list[float]] = {name: [] for name in engines}
    speeds: list[float] = []
    for turn in range(turns + 1):
        prompt = torch.randint(0, 512, (PROMPT,)).tolist()
        for name, engine in engines.items():
            peer, expected = theirs(model, prompt)
            whole, tokens = await ours(engine, prompt, OUTPUT, turn)
            part, _ = await ours(engine, prompt, SHORT, turn)
            if tokens != expected:
                raise SystemExit(f"{name}: tokens differ from the peer's")
            reading = min(read(memory) for _ in range(5))
            if turn:
                gains[name].append(peer / whole)
                shares[name].append(reading * (OUTPUT - SHORT) / (whole - part))
                speeds.append(memory.numel() * 4 / reading / 1e9)
    for engine in engines.values():
        await engine.close()
    gain, share = ({name: statistics.median(each) for name, each in all_.items()} for all_ in (gains, shares))
    for name in engines:
        print(f"{name}: {gain[name]:.2f} of generate, {share[name]:.2f} of what reading takes")
    gigabytes = round(statistics.median(speeds), 1)
    report("rollout_stream", gain["free"], floor=STREAM_FLOOR, good=STREAM_GOOD, load=load)
    report("rollout_stream_exact", gain["exact"], floor=None, good=None, load=load)
    report(
        "rollout_bytes", share["free"], floor=BYTES_FLOOR, good=BYTES_GOOD, load=load, read_gb_per_s=gigabytes
    )
    report("rollout_bytes_exact", share["exact"], floor=None, good=None, load=load)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=5, help="measured turns of each side")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    asyncio.run(measure(arguments.turns))


if __name__ == "__main__":
    main()
