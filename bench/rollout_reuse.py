"""Prompt tokens that the engine's prefix cache serves, against an ideal cache of as many blocks.

The trace is made up; no production trace is shipped here. Conversations begin with one of a few system prompts and grow by turns of
log-normal lengths; a user comes back after a pause during which others speak, or never. The ideal keeps single 16-token blocks, least
recently used first out, and reads no slot of what it does not count. The engine's pool (its real book, without the numbers) has
rows of size classes, copies what matches a segment in part, and gives up whole rows: that is what it may lose by. Both
see one request at a time. The last token of a prompt is always computed, by the ideal too. Counts: judged under any load.

    python -m bench.rollout_reuse                 capacity without bound, 20,000 and 5,000 blocks
"""

from __future__ import annotations

import argparse
import random
from collections import OrderedDict
from collections.abc import Sequence

from bench.result import report
from temper.rollout.engine.torch.arena import Row
from temper.rollout.engine.torch.blocks import Pool
from temper.rollout.engine.torch.context import Context, Course
from temper.rollout.engine.torch.sizes import BLOCK, UNIT, layout

FLOOR, GOOD = 0.85, 0.95
SIZES = {"unbounded": 400_000, "20k": 20_000, "5k": 5_000}
SYSTEMS, SYSTEM_TOKENS, ALIVE, LONGEST = 12, 300, 24, 12_000
USER_MEDIAN, ANSWER_MEDIAN, SPREAD, LEAVES = 900, 180, 1.0, 0.35


class NoNumbers:
    """Moves nothing: the book alone is played."""

    def move(self, source: int, target: int, size: int) -> None:
        """Nothing to copy."""

    def swap(self, one: int, two: int, size: int) -> None:
        """Nothing to exchange."""

    def copy(self, source: Row, at: int, target: Row, to: int, count: int) -> None:
        """Nothing to copy."""


def make_trace(source: random.Random, requests: int) -> list[tuple[list[int], int]]:
    """Contexts at the end of each turn, output included, and how many of their tokens were the prompt."""

    def said(median: int) -> list[int]:
        return [
            source.randrange(32_000) for _ in range(max(1, round(median * source.lognormvariate(0, SPREAD))))
        ]

    systems = [[source.randrange(32_000) for _ in range(SYSTEM_TOKENS)] for _ in range(SYSTEMS)]
    histories = [list(source.choice(systems)) for _ in range(ALIVE)]
    trace: list[tuple[list[int], int]] = []
    while len(trace) < requests:
        who = source.randrange(ALIVE)
        history = histories[who]
        history += said(USER_MEDIAN)
        prompt = len(history)
        history += said(ANSWER_MEDIAN)
        if len(history) <= LONGEST:
            trace.append((list(history), prompt))
        if len(history) > LONGEST or source.random() < LEAVES:
            histories[who] = list(source.choice(systems))
    return trace


def ideal(trace: Sequence[tuple[list[int], int]], blocks: int) -> float:
    """Share of prompt tokens that an LRU cache of blocks serves."""
    cache: OrderedDict[int, None] = OrderedDict()
    hits = total = 0
    for tokens, prompt in trace:
        keys: list[int] = []
        for end in range(BLOCK, len(tokens) + 1, BLOCK):
            keys.append(hash((keys[-1] if keys else 0, *tokens[end - BLOCK : end])))
        known = 0
        while known < prompt // BLOCK and keys[known] in cache:
            known += 1
        hits += min(known * BLOCK, prompt - 1)
        total += prompt
        for key in reversed(keys):
            cache[key] = None
            cache.move_to_end(key)
        while len(cache) > blocks:
            cache.popitem(last=False)
    return hits / total


def engine(trace: Sequence[tuple[list[int], int]], blocks: int) -> float:
    """The same through the engine's book of the pool."""
    pool = Pool(blocks * BLOCK // UNIT, NoNumbers())
    hits = total = 0
    for tokens, prompt in trace:
        context = Context(b"salt", Course(False, [(0, prompt)]))
        found = context.match(pool, tokens[:prompt])
        length = len(tokens)
        if not context.adopt(pool, found, length, lambda shared, n=length: pool.fits(layout(n)[shared:])):
            raise SystemExit(f"a context of {length} tokens does not fit {blocks} blocks beside its own hits")
        hits += context.done
        total += prompt
        context.done = length
        context.publish(pool, tokens)
        context.free(pool)
    return hits / total


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=800)
    parser.add_argument("--seed", type=int, default=3)
    arguments = parser.parse_args()
    trace = make_trace(random.Random(arguments.seed), arguments.requests)
    for name, blocks in SIZES.items():
        best, real = ideal(trace, blocks), engine(trace, blocks)
        report(
            f"rollout_reuse_{name}",
            real / best,
            floor=FLOOR,
            good=GOOD,
            load=0.0,
            hit_rate=round(real, 4),
            ideal=round(best, 4),
        )


if __name__ == "__main__":
    main()
