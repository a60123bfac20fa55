"""How long new weights wait for running sequences: swap latency over one decode step, for each policy that lets them run on.

The torch engine decodes a full batch; a staged version is swapped in again and again, from the call to the first step that may run
under it. What a swap may cost by nature is the rest of the step under way, so the bar is three steps. Staging (parsing, checking, the
probe) runs beside the batch and is not in it; nor is the prefill that ``recompute`` and ``requeue`` ask for, which is shown apart.

    python -m bench.rollout_swap
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics

import torch

from bench.result import report
from bench.rollout_policy import random_policy
from temper.rollout.engine.base import Request, Sampling, SwapPolicy
from temper.rollout.engine.torch.engine import TorchEngine

FLOOR, GOOD = 3.0, 1.0
SLOTS, PROMPT, CONTEXT = 16, 48, 1024
POLICIES = (SwapPolicy.KEEP, SwapPolicy.RECOMPUTE, SwapPolicy.REQUEUE)


async def measure(policy: SwapPolicy, swaps: int) -> tuple[float, float]:
    """Median seconds of a swap, and of a decode step."""
    engine = TorchEngine(slots=SLOTS, max_context=CONTEXT, prefill_tokens=1024)
    await engine.start()
    await engine.load(random_policy(0, layers=4, width=256, heads=8, kv_heads=4, context=CONTEXT))
    await engine.swap(0)
    begun = asyncio.Event()
    running = [
        engine.submit(
            Request(f"r{i}", tuple(range(i, i + PROMPT)), Sampling(CONTEXT - PROMPT - 1), 0, i),
            lambda _: begun.set(),
        )
        for i in range(SLOTS)
    ]
    await begun.wait()
    latencies: list[float] = []
    steps: list[float] = []
    for version in range(1, swaps + 1):
        await engine.load(random_policy(version, layers=4, width=256, heads=8, kv_heads=4, context=CONTEXT))
        await asyncio.sleep(0.05)  # past the prefill that the swap before may have caused
        before = engine.stats()
        await asyncio.sleep(0.1)
        after = engine.stats()
        if after.running < SLOTS:
            break
        steps.append((after.busy_seconds - before.busy_seconds) / max(1, after.steps - before.steps))
        latencies.append((await engine.swap(version, policy)).seconds)
    for i in range(SLOTS):
        engine.cancel(f"r{i}")
    await asyncio.gather(*running)
    await engine.close()
    if not latencies:
        raise SystemExit("the batch was done before the first swap; raise CONTEXT")
    return statistics.median(latencies), statistics.median(steps)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--swaps", type=int, default=15, help="swaps per policy")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    torch.set_num_threads(1)
    ratios: dict[str, float] = {}
    for policy in POLICIES:
        latency, step = asyncio.run(measure(policy, arguments.swaps))
        ratios[policy.value] = round(latency / step, 3)
        print(f"{policy.value}: swap {latency * 1e3:.2f} ms, decode step {step * 1e3:.2f} ms")
    report("rollout_swap", ratios["keep"], floor=FLOOR, good=GOOD, better="lower", load=load, **ratios)


if __name__ == "__main__":
    main()
