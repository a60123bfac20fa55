"""What static batches waste, and how much of that continuous batching gets back.

*Continuous*: the same engine and requests (outputs log-normal, sigma .9), once with all requests queued, once in batches of ``SLOTS`` that
each run to their longest, as a static batch does. The gain in CPU time, in turns A B A B, as a share of the bound that counting slot
steps gives: sum of (slots x longest of the batch) over sum of lengths. Tokens beyond what was asked for do not count.

*Waste*: slot steps of static batches of 64 over tokens asked for, on output lengths with the published quantiles of two Azure
traces (50, 90, 99 and 100 %: conversation 129, 424, 601, 1000; code 13, 55, 252, 1899). The lengths are generated: linear up to
the median and log-linear above, from a fixed seed. They are not the trace. A count, and the prize that continuous batching competes for.

    python -m bench.rollout_slots
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import random
import statistics
import time
from collections.abc import Sequence

import torch

from bench.result import report
from bench.rollout_policy import random_policy
from temper.rollout.engine.base import Request, Sampling
from temper.rollout.engine.torch.engine import TorchEngine

FLOOR, GOOD = 0.65, 0.85
SLOTS, REQUESTS, LONGEST, MEDIAN, SIGMA = 16, 64, 240, 40, 0.9
STATIC = 64
QUANTILES = (0.0, 0.5, 0.9, 0.99, 1.0)
AZURE = {"conversation": (1, 129, 424, 601, 1000), "code": (1, 13, 55, 252, 1899)}


def slot_steps(lengths: Sequence[int], slots: int) -> int:
    """What static batches in order of arrival compute."""
    batches = (lengths[i : i + slots] for i in range(0, len(lengths), slots))
    return sum(max(batch) * len(batch) for batch in batches)


def generated(quantiles: Sequence[int], count: int, seed: int) -> list[int]:
    """Lengths whose quantiles are those of :data:`QUANTILES`."""
    source = random.Random(seed)
    lengths: list[int] = []
    for _ in range(count):
        at = source.random()
        i = next(i for i in range(1, len(QUANTILES)) if at <= QUANTILES[i])
        share = (at - QUANTILES[i - 1]) / (QUANTILES[i] - QUANTILES[i - 1])
        low, high = quantiles[i - 1], quantiles[i]
        length = low + share * (high - low) if i == 1 else low * (high / low) ** share
        lengths.append(max(1, round(length)))
    return lengths


async def play(engine: TorchEngine, name: str, prompts: list[tuple[int, ...]], lengths: list[int]) -> None:
    """All at once; the engine queues what does not fit."""
    await asyncio.gather(
        *(
            engine.submit(Request(f"{name}-{i}", prompt, Sampling(length), 0, i))
            for i, (prompt, length) in enumerate(zip(prompts, lengths, strict=True))
        )
    )


async def measure(turns: int) -> tuple[float, float]:
    """Median gain of continuous batching, and its bound."""
    source = random.Random(0)
    lengths = [
        min(LONGEST, max(1, round(MEDIAN * math.exp(source.gauss(0, SIGMA))))) for _ in range(REQUESTS)
    ]
    prompts = [tuple(source.randrange(512) for _ in range(source.randrange(30, 90))) for _ in range(REQUESTS)]
    engine = TorchEngine(slots=SLOTS, max_context=512)
    await engine.start()
    await engine.load(random_policy(0, layers=4, width=256, heads=8, kv_heads=4, context=512))
    await engine.swap(0)
    gains: list[float] = []
    for turn in range(turns + 1):
        begun = time.process_time()
        await play(engine, f"c{turn}", prompts, lengths)
        middle = time.process_time()
        for i in range(0, REQUESTS, SLOTS):
            batch = lengths[i : i + SLOTS]
            await play(engine, f"s{turn}-{i}", prompts[i : i + SLOTS], [max(batch)] * len(batch))
        if turn:  # the first turn warms both
            gains.append((time.process_time() - middle) / (middle - begun))
    await engine.close()
    return statistics.median(gains), slot_steps(lengths, SLOTS) / sum(lengths)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=3, help="measured turns of each side")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    torch.set_num_threads(1)
    gain, bound = asyncio.run(measure(arguments.turns))
    print(f"continuous over static: {gain:.2f} times; counting slot steps bounds it by {bound:.2f}")
    report(
        "rollout_slots",
        gain / bound,
        floor=FLOOR,
        good=GOOD,
        load=load,
        gain=round(gain, 3),
        bound=round(bound, 3),
    )
    for name, quantiles in AZURE.items():
        lengths = generated(quantiles, 200 * STATIC, seed=1)
        report(
            f"rollout_static_waste_{name}",
            slot_steps(lengths, STATIC) / sum(lengths),
            floor=None,
            good=None,
            better="lower",
            load=0.0,  # a count
            mean_length=round(statistics.mean(lengths), 1),
        )


if __name__ == "__main__":
    main()
