"""The fast variant against the standard one, on rollouts that repeat themselves.

Same weights, same prompts, greedy, one thread; groups of four that share a prompt, few at a time, as interactive use has it.
Standard is fp32 without drafts. Fast is int8 (W8A8) with drafts from the group's suffixes. Both are measured in CPU time of
this process, in turns A B A B, and the ratio of tokens per second is the median over turns. Random weights, decoded
greedily, fall into loops: that is the repetition. Drafts alone, without int8, must not change a single token: checked.

    python -m bench.rollout_speculation        8 layers, width 512 (about 30M parameters), 12 requests, 4 slots
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
from temper.rollout.engine.base import Completion, PolicyFiles, Request, Sampling
from temper.rollout.engine.torch.engine import TorchEngine
from temper.rollout.engine.torch.fast import Fast

FLOOR, GOOD = 2.0, 4.0
GROUPS, MEMBERS, SLOTS, OUTPUT = 3, 4, 4, 128

VARIANTS = {
    "standard": Fast(),
    "drafts": Fast(speculation="suffix"),
    "int8": Fast(quantisation="w8a8"),
    "fast": Fast(speculation="suffix", quantisation="w8a8"),
}


@dataclass(frozen=True, slots=True)
class Run:
    """One turn of one variant."""

    seconds: float
    """CPU time."""
    done: list[Completion]
    """In the order of the requests."""

    @property
    def rate(self) -> float:
        """Output tokens per second."""
        return sum(len(one.tokens) for one in self.done) / self.seconds

    @property
    def accepted(self) -> float:
        """Share of the output that drafts gave."""
        return sum(one.drafts_accepted for one in self.done) / sum(len(one.tokens) for one in self.done)


def make_model() -> Any:
    """Random weights; the seed is fixed."""
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=4096,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=512,
        tie_word_embeddings=False,
    )
    return transformers.Qwen3ForCausalLM(config).eval().float()


async def start(model: Any, fast: Fast) -> TorchEngine:
    """An engine that serves the model."""
    tensors = {name: value.contiguous() for name, value in model.state_dict().items()}
    files = PolicyFiles(0, json.loads(model.config.to_json_string()), (save(tensors),))
    engine = TorchEngine(slots=SLOTS, max_context=512, batch_invariant=False, fast=fast)
    await engine.start()
    await engine.load(files)
    await engine.swap(0)
    return engine


async def run(engine: TorchEngine, prompts: list[tuple[int, ...]], turn: int) -> Run:
    """All groups at once; the engine queues what does not fit."""
    begun = time.process_time()
    futures = [
        engine.submit(
            Request(f"{turn}-{g}-{i}", prompt, Sampling(OUTPUT, temperature=0.0), 0, i, group=f"{turn}-{g}")
        )
        for g, prompt in enumerate(prompts)
        for i in range(MEMBERS)
    ]
    done = await asyncio.gather(*futures)
    return Run(time.process_time() - begun, done)


async def measure(turns: int) -> dict[str, list[Run]]:
    """Every variant in every turn; the first turn warms all and is not counted."""
    model = make_model()
    prompts = [tuple(torch.randint(0, 4096, (48,)).tolist()) for _ in range(GROUPS)]
    engines = {name: await start(model, fast) for name, fast in VARIANTS.items()}
    runs: dict[str, list[Run]] = {name: [] for name in engines}
    for turn in range(turns + 1):
        for name, engine in engines.items():
            one = await run(engine, prompts, turn)
            if turn:
                runs[name].append(one)
    for engine in engines.values():
        await engine.close()
    return runs


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=3, help="measured turns of each variant")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    torch.set_num_threads(1)
    runs = asyncio.run(measure(arguments.turns))
    rates = {name: [one.rate for one in each] for name, each in runs.items()}
    ratios = {
        name: statistics.median(mine / base for mine, base in zip(each, rates["standard"], strict=True))
        for name, each in rates.items()
    }
    tokens = {name: [one.tokens for one in each[-1].done] for name, each in runs.items()}
    if tokens["drafts"] != tokens["standard"]:
        raise SystemExit("drafts changed an output")
    accepted = runs["fast"][-1].accepted
    for name, ratio in ratios.items():
        print(f"{name}: {statistics.median(rates[name]):.0f} tokens per CPU second, {ratio:.2f} of standard")
    print(f"drafts gave {accepted:.0%} of the output of fast")
    report(
        "rollout_speculation",
        ratios["fast"],
        floor=FLOOR,
        good=GOOD,
        load=load,
        drafts_alone=round(ratios["drafts"], 2),
        int8_alone=round(ratios["int8"], 2),
        accepted=round(accepted, 3),
    )


if __name__ == "__main__":
    main()
