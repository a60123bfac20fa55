"""Which replica takes a request: a pure policy over what each is believed to have cached and to be busy with.

    cost of a replica = prompt tokens it would have to compute + 1/4 of what it is busy with + .09 of what it did of late

A prompt is known by the strong hash chain of its 16-token blocks, the whole prefix and not its first message only (two
agents with one system prompt share its blocks and nothing else). A session stays where it is while that replica is
healthy. ``bench/rollout_routing.py`` measures both halves against round-robin.
"""

from __future__ import annotations

import hashlib
import struct
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

BLOCK = 16  # tokens, as the engines share them
# Weights against a token computed now. Requests of one batch share their steps, so waiting behind a token costs less than
# computing one; past work only breaks what would otherwise be ties. Chosen on the trace of the benchmark.
_BUSY, _PAST = 0.25, 0.09
_DECAY = 0.995  # of past work, per request placed
_SESSIONS = 100_000  # remembered; the one that was quiet longest is forgotten


@dataclass(slots=True, eq=False)
class _Replica:
    blocks: OrderedDict[bytes, None] = field(default_factory=OrderedDict[bytes, None])
    healthy: bool = True
    busy: int = 0  # tokens of requests under way
    past: float = 0.0  # decayed tokens computed and written
    placed: int = 0


@dataclass(frozen=True, slots=True)
class Placed:
    """A choice. Hand it back to :meth:`Router.finished`."""

    replica: int
    """Number of the replica."""
    cached: int
    """Prompt tokens it is believed to have."""
    work: int
    """Tokens it was charged with."""


class Router:
    """Places requests on ``replicas`` copies. ``blocks``: how many each can keep."""

    def __init__(self, replicas: int, *, blocks: int) -> None:
        self._replicas = [_Replica() for _ in range(replicas)]
        self._capacity = max(1, blocks)
        self._sessions: OrderedDict[str, int] = OrderedDict()

    def place(
        self, tokens: Sequence[int], *, output: int, session: str | None, salt: str = ""
    ) -> Placed | None:
        """The replica for a prompt of ``tokens`` that may grow by ``output``; None when no replica is healthy."""
        keys = list(chain(tokens, salt))
        chosen = self._of_session(session)
        if chosen is None:
            chosen = self._cheapest(keys, len(tokens))
        if chosen is None:
            return None
        replica = self._replicas[chosen]
        cached = BLOCK * _known(replica, keys)
        work = len(tokens) - cached + output
        for each in self._replicas:
            each.past *= _DECAY
        replica.past += len(tokens) - cached
        replica.busy += work
        replica.placed += 1
        self._remember(replica, keys)
        if session is not None:
            self._sessions[session] = chosen
            self._sessions.move_to_end(session)
            if len(self._sessions) > _SESSIONS:
                self._sessions.popitem(last=False)
        return Placed(chosen, cached, work)

    def finished(self, placed: Placed, written: int = 0) -> None:
        """A placed request has ended, having ``written`` tokens."""
        replica = self._replicas[placed.replica]
        replica.past += written
        replica.busy = max(0, replica.busy - placed.work)

    def set_health(self, number: int, *, healthy: bool) -> None:
        """An unhealthy replica gets nothing; one that comes back is believed to have nothing cached."""
        replica = self._replicas[number]
        if replica.healthy and not healthy:
            replica.blocks.clear()
        replica.healthy = healthy

    def forget(self) -> None:
        """New weights: nothing that was cached serves any more. Sessions stay where they are."""
        for replica in self._replicas:
            replica.blocks.clear()

    def placed(self) -> list[int]:
        """Requests placed on each replica so far."""
        return [replica.placed for replica in self._replicas]

    def _of_session(self, session: str | None) -> int | None:
        known = self._sessions.get(session) if session is not None else None
        return known if known is not None and self._replicas[known].healthy else None

    def _cheapest(self, keys: Sequence[bytes], length: int) -> int | None:
        def cost(number: int) -> tuple[float, int]:
            replica = self._replicas[number]
            computed = length - BLOCK * _known(replica, keys)
            return computed + _BUSY * replica.busy + _PAST * replica.past, replica.placed

        healthy = [number for number, replica in enumerate(self._replicas) if replica.healthy]
        return min(healthy, key=cost, default=None)

    def _remember(self, replica: _Replica, keys: Iterable[bytes]) -> None:
        for key in reversed(list(keys)):  # the beginning of a prompt is shared most: it is forgotten last
            replica.blocks[key] = None
            replica.blocks.move_to_end(key)
        while len(replica.blocks) > self._capacity:
            replica.blocks.popitem(last=False)


def chain(tokens: Sequence[int], salt: str = "") -> Iterable[bytes]:
    """Keys of the full blocks of a prompt, each over everything before it. ``salt`` keeps tenants apart."""
    key = salt.encode()
    for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
        block = tokens[start : start + BLOCK]
        key = hashlib.blake2b(key + struct.pack(f"<{BLOCK}q", *block), digest_size=16).digest()
        yield key


def _known(replica: _Replica, keys: Sequence[bytes]) -> int:
    """Leading blocks that a replica is believed to have."""
    for number, key in enumerate(keys):
        if key not in replica.blocks:
            return number
    return len(keys)
