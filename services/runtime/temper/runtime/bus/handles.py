"""What a `MemoryBus` hands out: deliveries, poisoned commands, buckets, served subjects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Protocol, TypeVar

from google.protobuf.message import Message as Proto

from temper.runtime.bus import requests
from temper.runtime.bus.base import Deleted, Entry, Settled, WatchItem, checked_key
from temper.runtime.bus.broker import Broker, Handout, MemoryBucket, Message, Service, Signal, WorkQueue
from temper.runtime.envelope import parse

M = TypeVar("M", bound=Proto)
LOOK_S = 1.0  # how often a watch looks for values that grew too old


class Client(Protocol):
    """What the parts ask of the bus that handed them out."""

    def reach(self) -> None:
        """Raises Unavailable while cut off."""
        ...

    async def reached(self) -> None:
        """Waits while cut off."""
        ...

    async def pause(self, *signals: Signal, at_most_s: float | None = None) -> None:
        """Waits for the first of the signals."""
        ...

    async def bury(self, message: Message, reason: str) -> None:
        """Copies a command to the dead letters."""
        ...


class MemoryDelivery:
    """One command in the hands of one worker."""

    def __init__(self, bus: Client, queue: WorkQueue, handout: Handout, settled: Signal) -> None:
        self._bus, self._queue, self._handout, self._on_settled = bus, queue, handout, settled
        self.settled = False
        self.subject = handout.message.subject
        self.body = handout.message.body
        self.delivered = handout.count
        self.envelope = replace(handout.message.envelope, attempt=handout.count)

    def holds(self) -> bool:
        """Whether the command is still in this worker's hands: neither settled nor taken back."""
        return not self.settled and self._queue.is_held(self._handout)

    def message(self, message_type: type[M]) -> M:
        return parse(self.envelope, self.body, message_type)

    async def ack(self) -> None:
        if self._settle():
            self._queue.finish(self._handout)

    async def nak(self, delay_s: float = 0.0) -> None:
        if self._settle():
            self._queue.release(self._handout, delay_s)

    async def term(self, reason: str) -> None:
        if self._settle():
            await self._bus.bury(self._handout.message, reason)
            self._queue.finish(self._handout)

    async def in_progress(self) -> None:
        self._bus.reach()
        if not self.settled:
            self._queue.extend(self._handout)

    def _settle(self) -> bool:
        if self.settled:
            return False
        self.settled = True
        self._on_settled.fire()
        self._bus.reach()
        return True


class MemoryPoisoned:
    """A command that was handed out too often."""

    def __init__(self, bus: Client, queue: WorkQueue, message: Message, delivered: int) -> None:
        self._bus, self._queue, self._message = bus, queue, message
        self.subject, self.envelope, self.body = message.subject, message.envelope, message.body
        self.delivered = delivered

    def message(self, message_type: type[M]) -> M:
        return parse(self.envelope, self.body, message_type)

    async def bury(self, reason: str) -> None:
        await self._bus.bury(self._message, reason)
        self._queue.forget(self._message.seq)


class MemoryKeyValue:
    """One bucket, as one client sees it."""

    def __init__(self, bus: Client, bucket: MemoryBucket) -> None:
        self._bus, self._bucket = bus, bucket

    async def get(self, key: str) -> Entry | None:
        self._bus.reach()
        found = self._bucket.live(checked_key(key))
        return None if found is None or found.value is None else Entry(key, found.value, found.revision)

    async def put(self, key: str, value: bytes) -> int:
        return self._write(key, value, None)

    async def create(self, key: str, value: bytes) -> int:
        return self._write(key, value, 0)

    async def update(self, key: str, value: bytes, revision: int) -> int:
        return self._write(key, value, revision)

    async def delete(self, key: str, revision: int | None = None) -> None:
        self._write(key, None, revision)

    async def keys(self, prefix: str = "") -> list[str]:
        self._bus.reach()
        self._bucket.expire()
        live = (key for key, found in self._bucket.values.items() if found.value is not None)
        return sorted(key for key in live if key.startswith(prefix))

    async def watch(self, prefix: str = "") -> AsyncGenerator[WatchItem, None]:
        seen, settled = 0, False
        while True:
            await self._bus.reached()
            self._bucket.expire()
            changes = self._since(seen, prefix)
            for item in changes:
                seen = item.revision
                yield item
            if not settled:
                settled = True
                yield Settled()
            elif not changes:
                await self._bus.pause(self._bucket.changed, at_most_s=LOOK_S)

    def _since(self, seen: int, prefix: str) -> list[Entry | Deleted]:
        found = sorted(
            (value.revision, key) for key, value in self._bucket.values.items() if value.revision > seen
        )
        return [self._item(key) for _, key in found if key.startswith(prefix)]

    def _item(self, key: str) -> Entry | Deleted:
        found = self._bucket.values[key]
        return (
            Deleted(key, found.revision) if found.value is None else Entry(key, found.value, found.revision)
        )

    def _write(self, key: str, value: bytes | None, expected: int | None) -> int:
        self._bus.reach()
        return self._bucket.write(checked_key(key), value, expected)


class Served:
    """A subject that somebody answers."""

    def __init__(self, broker: Broker, subject: str, service: Service) -> None:
        self._broker, self._subject, self._service = broker, subject, service
        self.running: set[asyncio.Task[object]] = set()
        """Requests in flight."""

    async def stop(self) -> None:
        services = self._broker.services.get(self._subject, [])
        if self._service in services:
            services.remove(self._service)
        if self.running:
            _, late = await asyncio.wait(self.running, timeout=requests.DRAIN_S)
            for task in late:
                task.cancel()
