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
STEPS = 20  # decode steps of a turn


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


class Decoding:
    """An engine with all members of a group running; it rests between the turns that are measured."""

    def __init__(self, engine: TorchEngine, members: int) -> None:
        self.engine = engine
        self._members, self._seen, self._target = members, dict[str, int](), 2
        self._reached = asyncio.Event()

    @classmethod
    async def begin(cls, members: int, size: int, count: int, *, shared: bool) -> Decoding:
        """Compute the prompts, and rest; there are ``count`` tokens to decode."""
        engine = await make(size + count + 64, members, shared=shared, batch_invariant=False)
        self = cls(engine, members)
        for i in range(members):
            request = Request(
                f"m{i}",
                prompt_of(size),
                Sampling(count),
                0,
                i,
                group="g" if shared else "",
                tenant="" if shared else f"t{i}",
                speculate=False,
            )
            engine.submit(request, self._see)
        await self._reached.wait()
        await engine.pause()
        return self

    def _see(self, emitted: Emitted) -> None:
        self._seen[emitted.request_id] = self._seen.get(emitted.request_id, 0) + len(emitted.tokens)
        if len(self._seen) == self._members and min(self._seen.values()) >= self._target:
            self._reached.set()

    async def turn(self, tokens: int) -> float:
        """CPU seconds of a decode step, over about so many."""
        self._target = min(self._seen.values()) + tokens
        self._reached.clear()
        steps, begun = self.engine.stats().steps, time.process_time()
        await self.engine.resume()
        await self._reached.wait()
        await self.engine.pause()
        return (time.process_time() - begun) / (self.engine.stats().steps - steps)


async def cascade(members: int, size: int, turns: int) -> list[float]:
    """Apart over together, per turn; the first turn warms both and does not count."""
    count = (turns + 1) * (STEPS + 4) + 4  # a pause comes a step or two late
    together = await Decoding.begin(members, size, count, shared=True)
    apart = await Decoding.begin(members, size, count, shared=False)
    ratios: list[float] = []
    for turn in range(turns + 1):
        one, other = await together.turn(STEPS), await apart.turn(STEPS)
        print(f"decode step: {other * 1e3:.1f} ms apart, {one * 1e3:.1f} ms together")
        if turn:
            ratios.append(other / one)
    await together.engine.close()
    await apart.engine.close()
    return ratios


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=5, help="measured turns of each side of the cascade")
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
    ratios = asyncio.run(cascade(arguments.members, arguments.prompt, arguments.turns))
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
