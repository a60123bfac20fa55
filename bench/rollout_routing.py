"""Routing over replicas: cached prompt tokens and balance, against round-robin, on a made-up trace of conversations.

Each conversation begins with one of a few system prompts and grows by turns (log-normal lengths); turns of all conversations
interleave at random, as arrivals do. A replica keeps a bounded number of 16-token blocks, least recently used first out, and what
it *really* has cached is simulated apart from what the router believes. Load is work done: prompt tokens computed and tokens written.

    python -m bench.rollout_routing
"""

from __future__ import annotations

import argparse
import random
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bench.result import report
from temper.rollout.serving.route import BLOCK, Placed, Router, chain

REPLICAS, BLOCKS = 8, 500
MIN_GAIN, GOOD_GAIN = 3.0, 3.3
MAX_OVER_MEAN, GOOD_BALANCE = 1.1, 1.05
Policy = Literal["round_robin", "cache_aware", "session"]


@dataclass(frozen=True, slots=True)
class Turn:
    """One request. Example: ``Turn(3, (5, 9, ...), 40)``."""

    conversation: int
    """Whose."""
    tokens: tuple[int, ...]
    """The whole prompt so far."""
    output: int
    """Tokens written."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a policy did with a trace."""

    hit_rate: float
    """Prompt tokens that were cached, over all."""
    max_over_mean: float
    """Work of the busiest replica over the mean."""


def conversations(source: random.Random, *, conversations: int = 400, systems: int = 24) -> list[Turn]:
    """A trace of interleaved turns."""
    prompts = [_made_up(source, 48) for _ in range(systems)]
    histories = [list(source.choice(prompts)) for _ in range(conversations)]
    left = [1 + min(12, int(source.lognormvariate(1.3, 0.6))) for _ in range(conversations)]
    alive: list[int] = []
    waiting = list(range(conversations))
    turns: list[Turn] = []
    while waiting:  # the end, when few are left, says nothing about a steady state
        while waiting and len(alive) < 40:  # about five conversations per replica at once
            alive.append(waiting.pop())
        number = source.choice(alive)
        history = histories[number]
        history += _made_up(source, min(400, int(source.lognormvariate(4.0, 0.8)) + 1))
        written = min(400, int(source.lognormvariate(4.2, 0.8)) + 1)
        turns.append(Turn(number, tuple(history), written))
        history += _made_up(source, written)
        left[number] -= 1
        if not left[number]:
            alive.remove(number)
    return turns


def measure(
    trace: Sequence[Turn], *, policy: Policy, replicas: int = REPLICAS, blocks: int = BLOCKS
) -> Measured:
    """Play a trace. Eight requests are under way at any time."""
    router = Router(replicas, blocks=blocks)
    caches = [OrderedDict[bytes, None]() for _ in range(replicas)]
    work = [0] * replicas
    hits = total = 0
    running: list[tuple[Placed, int]] = []
    for number, turn in enumerate(trace):
        session = str(turn.conversation) if policy == "session" else None
        placed = router.place(turn.tokens, output=turn.output, session=session)
        assert placed is not None
        chosen = number % replicas if policy == "round_robin" else placed.replica
        running.append((placed, turn.output))
        if len(running) > replicas:
            router.finished(*running.pop(0))
        cached = _use(caches[chosen], list(chain(turn.tokens)), blocks)
        hits += cached
        total += len(turn.tokens)
        work[chosen] += len(turn.tokens) - cached + turn.output
    return Measured(hits / total, max(work) * replicas / sum(work))


def _use(cache: OrderedDict[bytes, None], keys: Sequence[bytes], capacity: int) -> int:
    """Tokens a replica has of a prompt, which it has afterwards."""
    known = 0
    for key in keys:
        if key not in cache:
            break
        known += 1
    for key in reversed(keys):
        cache[key] = None
        cache.move_to_end(key)
    while len(cache) > capacity:
        cache.popitem(last=False)
    return known * BLOCK


def _made_up(source: random.Random, count: int) -> list[int]:
    return [source.randrange(32_000) for _ in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--conversations", type=int, default=400)
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args()
    trace = conversations(random.Random(arguments.seed), conversations=arguments.conversations)
    found = {policy: measure(trace, policy=policy) for policy in ("round_robin", "cache_aware", "session")}
    for policy, each in found.items():
        print(f"{policy:12} hit rate {each.hit_rate:.3f}  max/mean work {each.max_over_mean:.3f}")
    gain = found["cache_aware"].hit_rate / found["round_robin"].hit_rate
    report("rollout_routing_hits", gain, floor=MIN_GAIN, good=GOOD_GAIN, requests=len(trace), load=0.0)
    report(
        "rollout_routing_balance",
        found["cache_aware"].max_over_mean,
        floor=MAX_OVER_MEAN,
        good=GOOD_BALANCE,
        better="lower",
        load=0.0,  # counts, no times: other work on the machine changes nothing
    )


if __name__ == "__main__":
    main()
