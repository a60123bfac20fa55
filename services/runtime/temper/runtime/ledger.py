"""Remembers replies by id, so that a request that comes twice has one effect."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from temper.runtime.bus.base import KeyValue
from temper.runtime.errors import Conflict

T = TypeVar("T")


class IdempotencyLedger(Generic[T]):
    """Replies of the last `capacity` ids, in memory. A failure is not remembered: the request may come again.

    Example: `reply = await ledger.once(f"{episode}-{turn}", lambda: run(command))`.
    """

    def __init__(self, capacity: int = 1024) -> None:
        self._capacity = capacity
        self._replies: OrderedDict[str, asyncio.Future[T]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._replies)

    def __contains__(self, id: object) -> bool:  # noqa: A002  # the envelope's word
        return id in self._replies

    async def once(self, id: str, effect: Callable[[], Awaitable[T]]) -> T:  # noqa: A002  # the envelope's word
        """The reply to `id`: of the first call, also for those that come while it runs."""
        known = self._replies.get(id)
        if known is None:
            known = asyncio.ensure_future(_run(effect))
            self._replies[id] = known
            known.add_done_callback(lambda done: self._settled(id, done))
        self._replies.move_to_end(id)
        # A caller that gives up must not take the effect with it: others may wait for the same reply.
        return await asyncio.shield(known)

    def forget(self, id: str) -> None:  # noqa: A002  # the envelope's word
        """Drop one reply."""
        self._replies.pop(id, None)

    def _settled(self, id: str, done: asyncio.Future[T]) -> None:  # noqa: A002  # the envelope's word
        if done.cancelled() or done.exception() is not None:
            if self._replies.get(id) is done:
                del self._replies[id]
            return
        finished = (key for key, reply in list(self._replies.items()) if reply.done())
        while len(self._replies) > self._capacity and (oldest := next(finished, None)) is not None:
            del self._replies[oldest]


class StoredLedger:
    """Replies as bytes in a bucket: one effect also across processes and restarts.

    Between effect and record there is a gap in which a crash lets the effect happen again, so the effect itself must
    be repeatable; the ledger makes repeats rare and replies equal. The bucket's age limit bounds it.
    """

    def __init__(self, kv: KeyValue, prefix: str, capacity: int = 1024) -> None:
        self._kv, self._prefix = kv, prefix
        self._recent: IdempotencyLedger[bytes] = IdempotencyLedger(capacity)

    async def once(self, id: str, effect: Callable[[], Awaitable[bytes]]) -> bytes:  # noqa: A002  # the envelope's word
        """The reply to `id`: of the first call that recorded one."""
        return await self._recent.once(id, lambda: self._recorded(f"{self._prefix}.{id}", effect))

    async def _recorded(self, key: str, effect: Callable[[], Awaitable[bytes]]) -> bytes:
        entry = await self._kv.get(key)
        if entry is not None:
            return entry.value
        reply = await effect()
        try:
            await self._kv.create(key, reply)
        except Conflict:  # another process was faster: its reply is the one that counts
            entry = await self._kv.get(key)
            return entry.value if entry is not None else reply
        return reply


async def _run(effect: Callable[[], Awaitable[T]]) -> T:
    return await effect()
