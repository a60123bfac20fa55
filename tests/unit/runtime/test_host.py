from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from google.protobuf.wrappers_pb2 import Int64Value, StringValue

from temper.runtime.actor import Actor, handles, spawn
from temper.runtime.errors import Rejected, Unavailable
from temper.runtime.host import Host, RemoteRef
from temper.runtime.supervisor import Supervisor
from temper.runtime.testing import MemoryPlatform


class Counter(Actor):
    def __init__(self, fence: int = 0) -> None:
        self.fence = fence
        self.total = 0

    @handles(Int64Value)
    async def add(self, message: Int64Value) -> Int64Value:
        self.total += message.value
        return Int64Value(value=self.total)

    @handles(StringValue)
    async def say(self, message: StringValue) -> StringValue:
        if message.value == "fence":
            return StringValue(value=str(self.fence))
        if message.value == "who":
            return StringValue(value=self.envelope.source if self.envelope else "nobody")
        raise Rejected("what?", field="value")


class Process:
    """A process: its own client of the broker, its own supervisor."""

    def __init__(self, platform: MemoryPlatform, name: str) -> None:
        self.bus = platform.bus.client(name)
        self.supervisor = Supervisor(clock=platform.clock)
        self._clock = platform.clock

    async def host(self) -> Host:
        return Host(self.bus, self.supervisor, leases=await self.bus.kv("leases"), clock=self._clock)


@pytest.fixture
async def two(memory_platform: MemoryPlatform) -> AsyncIterator[tuple[Process, Process]]:
    pair = Process(memory_platform, "one"), Process(memory_platform, "two")
    yield pair
    for process in pair:
        await process.supervisor.stop()


async def test_an_actor_answers_the_same_over_the_bus(
    memory_platform: MemoryPlatform, two: tuple[Process, Process]
):
    one, _ = two
    ref = spawn(one.supervisor, "counter", Counter)
    exposed = await (await one.host()).expose(ref, Counter, "counters", "c1")
    remote = RemoteRef(memory_platform.bus, "counters", "c1")
    assert await ref.ask(Int64Value(value=2), timeout_s=1) == Int64Value(value=2)
    assert await remote.ask(Int64Value(value=3), Int64Value, timeout_s=1) == Int64Value(value=5)
    assert (await remote.ask(StringValue(value="who"), StringValue, timeout_s=1)).value == "test/1"
    with pytest.raises(Rejected, match="value: what"):
        await remote.ask(StringValue(value="?"), StringValue, timeout_s=1)
    await exposed.withdraw()
    with pytest.raises(Unavailable, match="nobody serves"):
        await remote.ask(Int64Value(value=3), Int64Value, timeout_s=1)


async def test_a_key_has_one_live_actor(memory_platform: MemoryPlatform, two: tuple[Process, Process]):
    one, other = await two[0].host(), await two[1].host()
    active = await one.activate("counters", "c1", Counter, Counter)
    assert active is not None
    assert await other.activate("counters", "c1", Counter, Counter) is None
    remote = RemoteRef(memory_platform.bus, "counters", "c1")
    assert (await remote.ask(StringValue(value="fence"), StringValue, timeout_s=1)).value == str(active.fence)
    await active.deactivate()
    with pytest.raises(Unavailable):
        await remote.ask(StringValue(value="fence"), StringValue, timeout_s=1)


async def test_a_deactivated_key_can_live_elsewhere_at_once_with_a_higher_fence(
    memory_platform: MemoryPlatform, two: tuple[Process, Process]
):
    one, other = await two[0].host(), await two[1].host()
    first = await one.activate("counters", "c1", Counter, Counter)
    assert first is not None
    await first.deactivate()
    second = await other.activate("counters", "c1", Counter, Counter)
    assert second is not None
    assert second.fence > first.fence
    assert (first.live, second.live) == (False, True)
    await second.deactivate()


async def test_an_actor_whose_process_is_cut_off_ends_before_it_lives_elsewhere(
    memory_platform: MemoryPlatform, two: tuple[Process, Process]
):
    one, other = await two[0].host(), await two[1].host()
    first = await one.activate("counters", "c1", Counter, Counter, ttl_s=6.0)
    assert first is not None
    two[0].bus.cut()
    second = None
    for _ in range(100):
        await memory_platform.clock.advance(0.2)
        second = second or await other.activate("counters", "c1", Counter, Counter)
        assert not (first.live and second is not None)
        if second is not None:
            break
    assert second is not None
    assert first.ended.is_set()
    with pytest.raises(Unavailable, match="has stopped"):
        first.ref.tell(Int64Value(value=1))
    two[0].bus.mend()
    remote = RemoteRef(memory_platform.bus, "counters", "c1")
    assert (await remote.ask(StringValue(value="fence"), StringValue, timeout_s=1)).value == str(second.fence)
    await second.deactivate()


async def test_asks_to_one_actor_are_handled_one_at_a_time(
    memory_platform: MemoryPlatform, two: tuple[Process, Process]
):
    one = await two[0].host()
    active = await one.activate("counters", "c1", Counter, Counter)
    assert active is not None
    remote = RemoteRef(memory_platform.bus, "counters", "c1")
    asks = (remote.ask(Int64Value(value=1), Int64Value, timeout_s=5) for _ in range(50))
    assert sorted(reply.value for reply in await asyncio.gather(*asks)) == list(range(1, 51))
    await active.deactivate()
