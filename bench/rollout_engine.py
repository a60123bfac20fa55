"""The torch engine against Hugging Face ``generate`` in static batches, on outputs with a long tail.

Same weights, same prompts, same output lengths (log-normal, sigma .9), greedy, fp32, one thread. The peer runs batches of
``SLOTS`` to the longest of each, as static batching must; the engine holds as many slots and refills them. Both are
measured in CPU time of this process, in turns A B A B, and the ratio is the median over turns. Tokens that nobody asked
for (the tail of a static batch) do not count for the peer.

    python bench/rollout_engine.py            the quick start's policy (4 layers, width 128), 64 requests, 16 slots
    python bench/rollout_engine.py --large    8 layers, width 512 (about 30M parameters), 32 requests, 8 slots
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from safetensors.torch import save

from bench.result import report
from temper.rollout.engine.base import PolicyFiles, Request, Sampling
from temper.rollout.engine.torch.engine import TorchEngine

FLOOR, GOOD = 1.8, 2.5
SIGMA, MEDIAN, LONGEST = 0.9, 40, 240


@dataclass(frozen=True, slots=True)
class Work:
    """What both sides do."""

    model: Any
    """``transformers`` model; its weights are the engine's."""
    prompts: list[list[int]]
    """Token ids."""
    lengths: list[int]
    """Output tokens per prompt."""
    slots: int
    """Sequences at once."""


def make_work(*, large: bool) -> Work:
    """Random weights and requests; the seed is fixed."""
    torch.manual_seed(0)
    layers, width, hidden, count, slots = (8, 512, 1408, 32, 8) if large else (4, 128, 352, 64, 16)
    config = transformers.Qwen3Config(
        vocab_size=264,
        hidden_size=width,
        intermediate_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=width // 32,
        num_key_value_heads=width // 64,
        head_dim=32,
        max_position_embeddings=512,
        tie_word_embeddings=False,
    )
    model = transformers.Qwen3ForCausalLM(config).eval().float()
    prompts = [torch.randint(0, 256, (int(size),)).tolist() for size in torch.randint(30, 90, (count,))]
    drawn = torch.exp(torch.randn(count) * SIGMA) * MEDIAN
    return Work(model, prompts, drawn.clamp(1, LONGEST).int().tolist(), slots)


def run_peer(work: Work) -> list[list[int]]:
    """Static batches in order of arrival, left-padded, each run to its longest."""
    outputs: list[list[int]] = []
    for start in range(0, len(work.prompts), work.slots):
        batch = work.prompts[start : start + work.slots]
        lengths = work.lengths[start : start + work.slots]
        width = max(map(len, batch))
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in batch])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in batch])
        with torch.inference_mode():
            made = work.model.generate(
                input_ids=ids,
                attention_mask=mask,
                do_sample=False,
                min_new_tokens=max(lengths),
                max_new_tokens=max(lengths),
                pad_token_id=0,
                eos_token_id=None,
            )
        outputs += [row[width : width + length].tolist() for row, length in zip(made, lengths, strict=True)]
    return outputs


async def run_engine(engine: TorchEngine, work: Work, turn: int) -> list[list[int]]:
    """All requests at once; the engine queues what does not fit."""
    futures = [
        engine.submit(Request(f"{turn}-{i}", tuple(prompt), Sampling(length, temperature=0.0), 0, 0))
        for i, (prompt, length) in enumerate(zip(work.prompts, work.lengths, strict=True))
    ]
    return [list(done.tokens) for done in await asyncio.gather(*futures)]


async def start_engine(work: Work, *, batch_invariant: bool = True) -> TorchEngine:
    """An engine with the model's weights and as many slots as the peer."""
    config = json.loads(work.model.config.to_json_string())
    tensors = {name: value.contiguous() for name, value in work.model.state_dict().items()}
    engine = TorchEngine(slots=work.slots, max_context=512, batch_invariant=batch_invariant)
    await engine.start()
    await engine.load(PolicyFiles(0, config, (save(tensors),)))
    await engine.swap(0)
    return engine


async def measure(work: Work, turns: int) -> tuple[list[float], float, float]:
    """CPU-time ratios peer / engine per turn, tokens per CPU second, and the share of outputs that are equal."""
    engine = await start_engine(work)
    ratios: list[float] = []
    rates: list[float] = []
    same = 0.0
    for turn in range(turns + 1):
        begun = time.process_time()
        ours = await run_engine(engine, work, turn)
        middle = time.process_time()
        theirs = run_peer(work)
        end = time.process_time()
        same = sum(a == b for a, b in zip(ours, theirs, strict=True)) / len(ours)
        if turn:  # the first turn warms both
            ratios.append((end - middle) / (middle - begun))
            rates.append(sum(work.lengths) / (middle - begun))
    await engine.close()
    return ratios, statistics.median(rates), same


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--large", action="store_true", help="a policy of about 30M parameters")
    parser.add_argument("--turns", type=int, default=5, help="measured turns of each side")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    work = make_work(large=arguments.large)
    ratios, rate, same = asyncio.run(measure(work, arguments.turns))
    waste = sum(
        max(work.lengths[i : i + work.slots]) * len(work.lengths[i : i + work.slots])
        for i in range(0, len(work.lengths), work.slots)
    ) / sum(work.lengths)
    print(f"per turn: {', '.join(f'{ratio:.2f}' for ratio in ratios)}; greedy outputs equal: {same:.0%}")
    print(
        f"engine: {rate:.0f} tokens per CPU second; static batches compute {waste:.2f} times the tokens asked for"
    )
    # A count, the same beside any other work.
    report("rollout_greedy_equal", same, floor=1.0, good=1.0, load=0.0)
    name = "rollout_engine_large" if arguments.large else "rollout_engine"
    report(
        name,
        statistics.median(ratios),
        floor=FLOOR,
        good=GOOD,
        load=load,
        tokens_per_s=round(rate),
        equal=same,
    )


if __name__ == "__main__":
    main()
