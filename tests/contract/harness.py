"""One way to drive any bus: the twin in memory on a fake clock, and NATS in real time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from temper.runtime import topology
from temper.runtime.bus.base import Bus
from temper.runtime.bus.broker import Broker
from temper.runtime.bus.memory import MemoryBus
from temper.runtime.bus.nats import Credentials, NatsBus
from temper.runtime.clock import Clock, FakeClock, SystemClock
from temper.runtime.embedded import NatsServer

T = TypeVar("T")

PATIENCE_S = 30.0
STEP_S = 0.05
QUIET_S = 0.3  # on a real broker: how long nothing must come, for "nothing comes"


class Side(Protocol):
    """A bus under test."""

    @property
    def bus(self) -> Bus: ...
    @property
    def clock(self) -> Clock: ...
    async def client(self, name: str) -> Bus: ...
    async def next(self, items: AsyncIterator[T]) -> T: ...
    async def nothing(self, items: AsyncIterator[object]) -> None: ...
    async def until(self, event: asyncio.Event) -> None: ...


@dataclass
class MemorySide:
    bus: MemoryBus
    clock: FakeClock

    @staticmethod
    async def make(shape: topology.Topology) -> MemorySide:
        clock = FakeClock()
        bus = MemoryBus(clock, broker=Broker(clock, shape), name="test/1")
        await bus.connect()
        return MemorySide(bus, clock)

    async def client(self, name: str) -> MemoryBus:
        client = self.bus.client(name)
        await client.connect()
        return client

    async def next(self, items: AsyncIterator[T]) -> T:
        return await self._pass_time_until(asyncio.ensure_future(anext(items)))

    async def until(self, event: asyncio.Event) -> None:
        await self._pass_time_until(asyncio.ensure_future(event.wait()))

    async def nothing(self, items: AsyncIterator[object]) -> None:
        waiting = asyncio.ensure_future(anext(items))
        await self.clock.settle()
        assert not waiting.done()
        await _cancelled(waiting)

    async def _pass_time_until(self, task: asyncio.Future[T]) -> T:
        for _ in range(int(PATIENCE_S / STEP_S)):
            await self.clock.settle()
            if task.done():
                return task.result()
            await self.clock.advance(STEP_S)
        await _cancelled(task)
        raise AssertionError(f"nothing came within {PATIENCE_S} s of the fake clock")


@dataclass
class NatsSide:
    bus: NatsBus
    server: NatsServer
    shape: topology.Topology
    clock: Clock = field(default_factory=SystemClock)
    clients: list[NatsBus] = field(default_factory=list)

    @staticmethod
    async def make(server: NatsServer, shape: topology.Topology) -> NatsSide:
        side = NatsSide(_bus(server, "test/1", shape), server, shape)
        await side.bus.connect()
        await topology.apply(side.bus, shape)
        return side

    async def client(self, name: str) -> NatsBus:
        client = _bus(self.server, name, self.shape)
        await client.connect()
        self.clients.append(client)
        return client

    async def next(self, items: AsyncIterator[T]) -> T:
        return await asyncio.wait_for(anext(items), PATIENCE_S)

    async def until(self, event: asyncio.Event) -> None:
        await asyncio.wait_for(event.wait(), PATIENCE_S)

    async def nothing(self, items: AsyncIterator[object]) -> None:
        waiting = asyncio.ensure_future(anext(items))
        await asyncio.wait({waiting}, timeout=QUIET_S)
        assert not waiting.done()
        await _cancelled(waiting)


def small_topology(**changes: int) -> topology.Topology:
    """The shipped topology, with a short ack wait and with `changes` to the command stream."""
    shape = topology.load()
    streams = tuple(replace(each, **changes) if each.name == topology.CMD else each for each in shape.streams)
    consumers = (
        topology.Consumer("rollout", ack_wait_s=0.5, max_deliver=2),
        topology.Consumer("trainer", ack_wait_s=0.5, max_deliver=50),
    )
    return replace(shape, streams=streams, consumers=consumers)


def _bus(server: NatsServer, name: str, shape: topology.Topology) -> NatsBus:
    return NatsBus(server.url, name=name, credentials=Credentials(token=server.token), topology=shape)


async def _cancelled(task: asyncio.Future[Any]) -> None:
    task.cancel()
    await asyncio.wait({task})
