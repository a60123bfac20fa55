"""What a group saves by sharing its prompt: context tokens computed, and time of decode steps.

*Prefill*: n samples of one prompt in one group against n times the prompt; exact, so it is judged under any load.

*Cascade*: decode of a group whose members attend the shared prompt together, against the same sequences as tenants of their own, who
may share nothing. Same engine options (not batch-invariant), CPU time of whole decode steps, in turns A B A B, median of the ratios.
The model has few layers and the design's head shape (16 query heads, 8 KV heads of 64), so attention is most of a step.

    python -m bench.rollout_prefix
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time

import torch

from bench.result import report
from bench.rollout_policy import random_policy
from temper.rollout.engine.base import Emitted, Request, Sampling
from temper.rollout.engine.torch.engine import TorchEngine

PREFILL_FLOOR, PREFILL_GOOD = 0.14, (1024 + 16) / (8 * 1024)
CASCADE_FLOOR, CASCADE_GOOD = 3.0, 5.0
LAYERS, WIDTH, HEADS, KV_HEADS, HEAD_DIM = 2, 256, 16, 8, 64


async def make(context: int, members: int, *, shared: bool, batch_invariant: bool) -> TorchEngine:
    """A started engine with room for every member's context."""
    pool = (context + 1024) * (2 if shared else members + 1) + 1024 * members
    engine = TorchEngine(
        slots=members,
        max_context=context,
        prefill_tokens=1024,
        kv_tokens=pool,
        batch_invariant=batch_invariant,
    )
    await engine.start()
    await engine.load(
        random_policy(
            0, layers=LAYERS, width=WIDTH, heads=HEADS, kv_heads=KV_HEADS, context=context, head_dim=HEAD_DIM
        )
    )
    await engine.swap(0)
    return engine


def prompt_of(size: int) -> tuple[int, ...]:
    """Ids without a period that a cache could find."""
    return tuple((i * i * 7 + 3 * i) % 509 for i in range(size))


async def prefill(members: int, size: int) -> float:
    """Context tokens computed over those of the naive way."""
    engine = await make(size + 64, members, shared=True, batch_invariant=True)
    group = [
        engine.submit(Request(f"g{i}", prompt_of(size), Sampling(8), 0, i, group="g")) for i in range(members)
    ]
    await asyncio.gather(*group)
    computed = engine.stats().prefill_tokens
    await engine.close()
    return computed / (members * size)


async def decode(members: int, size: int, count: int, *, shared: bool) -> float:
    """CPU seconds of a decode step with all members running."""
    engine = await make(size + count + 64, members, shared=shared, batch_invariant=False)
    ready = asyncio.Event()
    seen: dict[str, int] = {}

    def sink(emitted: Emitted) -> None:
        seen[emitted.request_id] = seen.get(emitted.request_id, 0) + 1
        if len(seen) == members and min(seen.values()) >= 2:
            ready.set()

    running = [
        engine.submit(
            Request(
                f"m{i}",
                prompt_of(size),
                Sampling(count),
                0,
                i,
                group="g" if shared else "",
                tenant="" if shared else f"t{i}",
                speculate=False,
            ),
            sink,
        )
        for i in range(members)
    ]
    await ready.wait()
    steps, begun = engine.stats().steps, time.process_time()
    await asyncio.gather(*running)
    spent, taken = time.process_time() - begun, engine.stats().steps - steps
    await engine.close()
    return spent / taken


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=3, help="measured turns of each side of the cascade")
    parser.add_argument("--prompt", type=int, default=4096, help="tokens of the cascade's prompt")
    parser.add_argument("--members", type=int, default=16, help="samples of the cascade's group")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    torch.set_num_threads(1)
    computed = asyncio.run(prefill(8, 1024))
    report(
        "rollout_prefill",
        computed,
        floor=PREFILL_FLOOR,
        good=PREFILL_GOOD,
        better="lower",
        load=0.0,  # a count of tokens: what else runs does not matter
        counted=True,
    )
    ratios: list[float] = []
    for _ in range(arguments.turns):
        together = asyncio.run(decode(arguments.members, arguments.prompt, 128, shared=True))
        apart = asyncio.run(decode(arguments.members, arguments.prompt, 128, shared=False))
        ratios.append(apart / together)
        print(f"decode step: {apart * 1e3:.1f} ms apart, {together * 1e3:.1f} ms together")
    report(
        "rollout_cascade",
        statistics.median(ratios),
        floor=CASCADE_FLOOR,
        good=CASCADE_GOOD,
        load=load,
        prompt=arguments.prompt,
        members=arguments.members,
    )


if __name__ == "__main__":
    main()
