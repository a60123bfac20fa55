"""One GRPO step of the torch engine: against the same mathematics by hand, against padded batches, against TRL.

    overhead   the engine's step / a minimal loop over the same packed rows (same model, loss, clipping, AdamW): what the seams cost
    packing    speed against padding to the longest / the ideal, which is padded tokens over real tokens
    trl        a step of TRL's GRPOTrainer (its loss, its padding, backward, AdamW) / the engine's step; reported

Same weights, samples and settings on every side, fp32, one thread, CPU time of this process, in turns, medians of ratios. Answers have
a long tail (log-normal, sigma .9), 16 groups of 8 samples, the quick start's policy.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.result import report
from temper.trainer.algorithms import algorithm
from temper.trainer.engine.base import DEFAULT_MICRO_BATCH, OptimizerSettings
from temper.trainer.engine.torch.engine import TorchEngine
from temper.trainer.engine.torch.forward import micro_batches
from temper.trainer.samples import Batch, Sample, scores
from temper.trainer.weights import safetensors

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 264,
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 352,
    "max_position_embeddings": 1024,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
}
LR = 1e-4
CLIP = 0.2


def make_batch(groups: int = 16, size: int = 8) -> Batch:
    """Groups with one prompt each and answers of long-tailed lengths."""
    rng = np.random.default_rng(0)
    samples: list[Sample] = []
    for group in range(groups):
        prompt = rng.integers(1, 256, size=int(rng.integers(24, 64)))
        for _ in range(size):
            length = int(np.clip(np.exp(rng.normal(0, 0.9)) * 40, 2, 400))
            ids = np.concatenate([prompt, rng.integers(1, 256, size=length)])
            mask = np.arange(ids.size) >= prompt.size
            logprobs = np.where(mask, -5.5 + 0.1 * rng.normal(size=ids.size), 0.0).astype(np.float32)
            samples.append(Sample(ids, mask, logprobs, float(rng.integers(0, 2)), True, group, "bench"))
    chosen = algorithm("grpo")
    return Batch(samples, chosen.advantages(scores(samples), chosen.settings({}, {}, max_staleness=1)))


def engine_side(batch: Batch) -> Callable[[], None]:
    """The engine's own step."""
    engine = TorchEngine()
    engine.build(CONFIG, seed=0)
    chosen = algorithm("grpo")
    settings = chosen.settings({}, {"correction": "none"}, max_staleness=1)
    return lambda: void(engine.step(batch, chosen, settings, OptimizerSettings(lr=LR)))


def void(_: object) -> None:
    """For a lambda whose result nobody wants."""


def token_loss(log_pi: torch.Tensor, advantage: torch.Tensor) -> torch.Tensor:
    """PPO clip at the first update of a step, summed."""
    w = (log_pi - log_pi.detach()).exp()
    return torch.maximum(-advantage * w, -advantage * w.clamp(1 - CLIP, 1 + CLIP)).sum()


def packed_by_hand(batch: Batch) -> Callable[[], None]:
    """A minimal loop over the rows that the engine would make."""
    engine = TorchEngine()
    engine.build(CONFIG, seed=0)
    model = engine.model
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.99), weight_decay=0.0)
    total = sum(sample.actions for sample in batch.samples)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        for order, rows in micro_batches(batch.samples, DEFAULT_MICRO_BATCH):
            hidden = model.hidden(rows.ids, rows.positions, rows.mask).flatten(0, 1)[rows.where]
            logp = model.lm_head(hidden).log_softmax(-1).gather(1, rows.target[:, None])[:, 0]
            counts = [batch.samples[i].actions for i in order]
            advantage = torch.from_numpy(np.repeat(batch.advantages[order], counts).astype(np.float32))
            (token_loss(logp, advantage) / total).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def padded_by_hand(batch: Batch, rows: int = 8) -> Callable[[], None]:
    """A minimal loop over batches of ``rows`` samples in order of arrival, padded to the longest of all, as static shapes are."""
    engine = TorchEngine()
    engine.build(CONFIG, seed=0)
    model = engine.model
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.99), weight_decay=0.0)
    total = sum(sample.actions for sample in batch.samples)
    width = max(sample.ids.size for sample in batch.samples)
    causal = torch.ones(width, width, dtype=torch.bool).tril()[None, None]
    positions = torch.arange(width)[None]

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        for start in range(0, len(batch.samples), rows):
            part = batch.samples[start : start + rows]
            ids = torch.zeros(len(part), width, dtype=torch.long)
            acted = torch.zeros(len(part), width, dtype=torch.bool)
            for row, sample in enumerate(part):
                ids[row, : sample.ids.size] = torch.from_numpy(sample.ids)
                acted[row, : sample.ids.size] = torch.from_numpy(sample.mask)
            hidden = model.hidden(ids, positions.expand(len(part), -1), causal)[:, :-1][acted[:, 1:]]
            logp = model.lm_head(hidden).log_softmax(-1).gather(1, ids[:, 1:][acted[:, 1:]][:, None])[:, 0]
            counts = [sample.actions for sample in part]
            known = batch.advantages[start : start + rows]
            advantage = torch.from_numpy(np.repeat(known, counts).astype(np.float32))
            (token_loss(logp, advantage) / total).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def trl_side(batch: Batch, directory: Path, rows: int = 32) -> Callable[[], None]:
    """TRL's loss on its own layout, accumulated over batches of ``rows`` samples."""
    trainer = make_trl(directory, rows)
    optimizer = torch.optim.AdamW(trainer.model.parameters(), lr=LR, betas=(0.9, 0.99), weight_decay=0.0)
    total = torch.tensor(float(sum(sample.actions for sample in batch.samples)))
    parts = [
        trl_inputs(batch, range(start, min(start + rows, len(batch.samples))), total)
        for start in range(0, len(batch.samples), rows)
    ]

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        for part in parts:
            trainer._compute_loss(trainer.model, part).backward()  # noqa: SLF001 - the loss alone, without its data loading
        torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
        optimizer.step()

    return step


def make_trl(directory: Path, rows: int) -> Any:
    """A GRPOTrainer around the same weights."""
    import datasets
    import tokenizers
    import transformers
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    transformers.utils.logging.set_verbosity_error()
    engine = TorchEngine()
    engine.build(CONFIG, seed=0)
    (directory / "config.json").write_text(json.dumps(CONFIG))
    (directory / "model.safetensors").write_bytes(safetensors(list(engine.export())))
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({str(i): i for i in range(264)}, unk_token="0"))
    trainer = GRPOTrainer(
        model=transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32),
        reward_funcs=[lambda completions, **_: [0.0] * len(completions)],
        args=GRPOConfig(
            output_dir=str(directory / "out"),
            report_to=[],
            use_cpu=True,
            bf16=False,
            beta=0.0,
            loss_type="dapo",
            epsilon=CLIP,
            per_device_train_batch_size=rows,
            num_generations=8,
        ),
        train_dataset=datasets.Dataset.from_list([{"prompt": "1 2"}]),
        processing_class=transformers.PreTrainedTokenizerFast(
            tokenizer_object=words, pad_token="0", eos_token="1"
        ),
    )
    trainer.current_gradient_accumulation_steps = 1
    return trainer


def trl_inputs(batch: Batch, members: range, total: torch.Tensor) -> dict[str, torch.Tensor]:
    """Prompts padded on the left, completions on the right, to the longest of these samples."""
    samples = [batch.samples[i] for i in members]
    cuts = [int(np.argmax(sample.mask)) for sample in samples]
    prompts = [sample.ids[:cut] for sample, cut in zip(samples, cuts, strict=True)]
    tails = [sample.ids[cut:] for sample, cut in zip(samples, cuts, strict=True)]
    left, right = max(map(len, prompts)), max(map(len, tails))
    wide = [np.pad(p, (left - len(p), 0)) for p in prompts], [np.pad(t, (0, right - len(t))) for t in tails]
    seen = [np.arange(left) >= left - len(p) for p in prompts], [np.arange(right) < len(t) for t in tails]
    return {
        "prompt_ids": torch.from_numpy(np.stack(wide[0])),
        "prompt_mask": torch.from_numpy(np.stack(seen[0]).astype(np.int64)),
        "completion_ids": torch.from_numpy(np.stack(wide[1])),
        "completion_mask": torch.from_numpy(np.stack(seen[1]).astype(np.int64)),
        "advantages": torch.from_numpy(batch.advantages[list(members)].astype(np.float32)),
        "num_items_in_batch": total,
    }


def in_turns(sides: list[Callable[[], None]], turns: int) -> list[list[float]]:
    """CPU seconds of each side in each turn; the first turn warms and is left out."""
    spent: list[list[float]] = [[] for _ in sides]
    for turn in range(turns + 1):
        for side, into in zip(sides, spent, strict=True):
            begun = time.process_time()
            side()
            if turn:
                into.append(time.process_time() - begun)
    return spent


def ratio(above: list[float], below: list[float]) -> float:
    """Median over turns."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=9, help="measured turns of each side")
    turns = parser.parse_args().turns
    load = os.getloadavg()[0]
    torch.set_num_threads(1)
    batch = make_batch()
    with tempfile.TemporaryDirectory() as directory:
        sides = [
            engine_side(batch),
            packed_by_hand(batch),
            padded_by_hand(batch),
            trl_side(batch, Path(directory)),
        ]
        engine, packed, padded, trl = in_turns(sides, turns)
    width = max(sample.ids.size for sample in batch.samples)
    real = sum(sample.ids.size for sample in batch.samples)
    ideal = width * len(batch.samples) / real
    report("trainer_step_overhead", ratio(engine, packed), floor=1.10, good=1.03, better="lower", load=load)
    report(
        "trainer_step_packing",
        ratio(padded, engine) / ideal,
        floor=0.9,
        good=1.0,
        load=load,
        speedup=round(ratio(padded, engine), 3),
        ideal=round(ideal, 3),
    )
    report("trainer_step_trl", ratio(trl, engine), floor=None, good=None, load=load)


if __name__ == "__main__":
    main()
