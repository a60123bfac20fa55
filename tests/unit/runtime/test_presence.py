import asyncio

import pytest

from temper.api.job.v1 import platform_pb2 as pb
from temper.runtime import presence as module
from temper.runtime.clock import FakeClock
from temper.runtime.config import BusConfig, LogConfig
from temper.runtime.connections import open_bus, open_log, patiently
from temper.runtime.errors import Rejected, Unavailable
from temper.runtime.presence import Presence
from temper.runtime.testing import MemoryPlatform
from temper.runtime.topology import load


async def stored(platform: MemoryPlatform) -> pb.Presence | None:
    entry = await (await platform.bus.kv("presence")).get("qa.one")
    return pb.Presence.FromString(entry.value) if entry else None


async def test_presence_says_who_how_and_since_when(memory_platform: MemoryPlatform) -> None:
    presence = Presence("qa", "one", memory_platform.bus, memory_platform.clock)
    presence.say(grpc="127.0.0.1:1")
    slots = {"in_use": 1}
    presence.reports(lambda: slots)
    presence.state = "ready"
    await presence.announce()
    slots["in_use"] = 2
    await memory_platform.clock.advance(3)
    await presence.announce()
    record = await stored(memory_platform)
    assert record is not None
    assert (record.service, record.instance, record.state) == ("qa", "one", "ready")
    assert dict(record.status) == {"grpc": "127.0.0.1:1", "in_use": "2"}
    assert record.seen_at.ToSeconds() - record.started_at.ToSeconds() == 3


async def test_a_withdrawn_presence_is_gone(memory_platform: MemoryPlatform) -> None:
    presence = Presence("qa", "one", memory_platform.bus, memory_platform.clock)
    await presence.announce()
    await presence.withdraw()
    assert await stored(memory_platform) is None


async def test_an_instance_that_stops_beating_is_forgotten(memory_platform: MemoryPlatform) -> None:
    await Presence("qa", "one", memory_platform.bus, memory_platform.clock).announce()
    await memory_platform.clock.advance(30)
    assert await stored(memory_platform) is None


def test_several_beats_may_be_lost_before_an_instance_is_forgotten() -> None:
    assert load().bucket(module.BUCKET).ttl_s >= 4 * module.EVERY_S


@pytest.mark.parametrize("url", ["memory:", "127.0.0.1:4222", "http://x"])
def test_an_address_that_is_no_brokers_is_refused(url: str) -> None:
    with pytest.raises(Rejected) as caught:
        open_bus(BusConfig(url=url), source="qa/one")
    assert caught.value.field == "bus.url"


@pytest.mark.parametrize("url", ["kafka:", "nats://elsewhere", "file:///x"])
def test_an_address_that_is_no_logs_is_refused(url: str, memory_platform: MemoryPlatform) -> None:
    with pytest.raises(Rejected) as caught:
        open_log(LogConfig(url=url), memory_platform.bus)
    assert caught.value.field == "log.url"


async def test_a_connection_is_tried_until_it_works(fake_clock: FakeClock) -> None:
    attempts = 0

    async def connect() -> None:
        nonlocal attempts
        attempts += 1
        if attempts < 4:
            raise Unavailable("not yet")

    waiting = asyncio.create_task(patiently(connect, "the broker", "nats://h:1", 10, fake_clock))
    await fake_clock.advance(5)
    await waiting
    assert attempts == 4


async def test_a_connection_that_never_works_is_given_up_with_a_way_out(fake_clock: FakeClock) -> None:
    async def connect() -> None:
        raise Unavailable("refused")

    waiting = asyncio.create_task(patiently(connect, "the broker", "nats://u:hush@h:1", 10, fake_clock))
    await fake_clock.advance(11)
    with pytest.raises(Unavailable, match="did not answer within 10 s") as caught:
        await waiting
    assert caught.value.hint
    assert "hush" not in str(caught.value)
    assert "refused" in str(caught.value)


async def test_wrong_credentials_are_not_tried_again(fake_clock: FakeClock) -> None:
    attempts = 0

    async def connect() -> None:
        nonlocal attempts
        attempts += 1
        raise Rejected("authorization violation", field="bus.token_file")

    with pytest.raises(Rejected):
        await patiently(connect, "the broker", "nats://h:1", 10, fake_clock)
    assert attempts == 1
