"""What happens to clients when the broker dies: nothing is lost, nobody waits for ever, everybody goes on."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest
from google.protobuf.wrappers_pb2 import BytesValue, StringValue

from temper.runtime import topology
from temper.runtime.bus.base import Entry, Settled, kept_alive
from temper.runtime.bus.commands import NAK
from temper.runtime.bus.nats import Credentials, NatsBus
from temper.runtime.clock import SystemClock
from temper.runtime.embedded import NatsServer
from temper.runtime.envelope import Envelope
from temper.runtime.errors import Rejected, Unavailable
from temper.runtime.lease import Lease
from temper.runtime.log.jetstream import JetStreamLog
from temper.runtime.testing import eventually
from temper.runtime.topology import cmd, evt, rpc

PATIENCE_S = 30.0


async def crash(server: NatsServer, bus: NatsBus) -> None:
    """kill -9, and wait until the client has noticed."""
    await server.kill()
    await eventually(lambda: not bus.connected)


async def crash_and_restart(server: NatsServer, bus: NatsBus) -> None:
    await crash(server, bus)
    await server.start()
    await eventually(lambda: bus.connected)


def text(value: str) -> StringValue:
    return StringValue(value=value)


async def upper(message: StringValue, _: Envelope) -> StringValue:
    return text(message.value.upper())


async def soon(awaitable):
    return await asyncio.wait_for(awaitable, PATIENCE_S)


async def test_a_request_fails_in_bounded_time_while_the_broker_is_away_and_works_afterwards(
    nats_server: NatsServer, nats_bus: NatsBus
):
    await nats_bus.serve(rpc("echo"), StringValue, upper)
    await crash(nats_server, nats_bus)
    with pytest.raises(Unavailable):
        await soon(nats_bus.request(rpc("echo"), text("a"), StringValue, timeout_s=0.3))
    await nats_server.start()
    answer = await soon(nats_bus.request(rpc("echo"), text("b"), StringValue, timeout_s=PATIENCE_S))
    assert answer.value == "B"


async def test_a_request_in_flight_fails_when_the_broker_dies(nats_server: NatsServer, nats_bus: NatsBus):
    reached = asyncio.Event()

    async def hang(message: StringValue, _: Envelope) -> StringValue:
        reached.set()
        await asyncio.Event().wait()
        return message

    served = await nats_bus.serve(rpc("hang"), StringValue, hang)
    asked = asyncio.ensure_future(nats_bus.request(rpc("hang"), text("a"), StringValue, timeout_s=2.0))
    await soon(reached.wait())
    await nats_server.kill()
    with pytest.raises(Unavailable, match="lost"):
        await soon(asked)
    await served.stop()


async def test_workers_go_on_with_what_was_queued_before_the_crash(
    nats_server: NatsServer, nats_bus: NatsBus
):
    async with aclosing(nats_bus.commands("trainer", concurrency=2)) as commands:
        for each in ("c1", "c2", "c3"):
            await nats_bus.command(cmd("trainer", "job1"), text(each), id=each)
        first = await soon(anext(commands))
        await first.ack()
        await crash_and_restart(nats_server, nats_bus)
        seen: set[str] = set()
        while seen != {"c2", "c3"}:
            delivery = await soon(anext(commands))
            seen.add(delivery.envelope.id)
            await delivery.ack()
        await nats_bus.command(cmd("trainer", "job1"), text("c4"), id="c4")
        assert (await soon(anext(commands))).envelope.id == "c4"


async def test_an_idle_worker_gets_commands_that_come_after_the_crash(
    nats_server: NatsServer, nats_bus: NatsBus
):
    async with aclosing(nats_bus.commands("trainer", concurrency=2)) as commands:
        waiting = asyncio.ensure_future(anext(commands))
        await asyncio.wait({waiting}, timeout=0.2)
        await crash_and_restart(nats_server, nats_bus)
        await nats_bus.command(cmd("trainer", "job1"), text("c1"), id="c1")
        assert (await soon(waiting)).envelope.id == "c1"


async def test_an_ack_waits_for_the_broker_to_come_back(nats_server: NatsServer, nats_bus: NatsBus):
    async with aclosing(nats_bus.commands("trainer", concurrency=1, ack_wait_s=60)) as commands:
        await nats_bus.command(cmd("trainer", "job1"), text("c1"), id="c1")
        delivery = await soon(anext(commands))
        await crash(nats_server, nats_bus)
        acking = asyncio.ensure_future(delivery.ack())
        await nats_server.start()
        await soon(acking)
        info = await nats_bus.js.call("STREAM.INFO.CMD")
        assert info["state"]["messages"] == 0


async def test_a_worker_that_beats_through_an_outage_is_not_handed_its_command_again(
    nats_server: NatsServer, nats_bus: NatsBus
):
    """Whether the server's clock or the first beat after the outage wins, the worker sees the next command."""
    async with aclosing(nats_bus.commands("trainer", concurrency=3, ack_wait_s=0.5)) as commands:
        await nats_bus.command(cmd("trainer", "job1"), text("c1"), id="c1")
        delivery = await soon(anext(commands))
        async with kept_alive(delivery, 0.1, SystemClock()):
            await crash(nats_server, nats_bus)
            gone_at = time.monotonic()
            await eventually(lambda: time.monotonic() - gone_at > 1.0)  # twice the ack wait
            await nats_server.start()
            await eventually(lambda: nats_bus.connected)
            await nats_bus.command(cmd("trainer", "job1"), text("c2"), id="c2")
            second = await soon(anext(commands))
            assert second.envelope.id == "c2"
            await second.ack()
        await delivery.ack()
        assert (await nats_bus.js.call("STREAM.INFO.CMD"))["state"]["messages"] == 0


async def test_a_command_handed_out_again_to_the_worker_that_still_has_it_is_joined_with_the_first(
    nats_bus: NatsBus,
):
    async with aclosing(nats_bus.commands("trainer", concurrency=3, ack_wait_s=0.5)) as commands:
        await nats_bus.command(cmd("trainer", "job1"), text("c1"), id="c1")
        delivery = await soon(anext(commands))
        following = asyncio.ensure_future(anext(commands))
        async with kept_alive(delivery, 0.1, SystemClock()):
            await nats_bus.js.link.publish(
                delivery._raw.reply, NAK
            )  # what makes the server hand it out at once
            await eventually(lambda: delivery.delivered == 2)
            await nats_bus.command(cmd("trainer", "job1"), text("c2"), id="c2")
            second = await soon(following)
            assert second.envelope.id == "c2"
            await second.ack()
        await delivery.ack()
        assert (await nats_bus.js.call("STREAM.INFO.CMD"))["state"]["messages"] == 0


async def test_a_command_sent_while_the_broker_is_away_arrives_once(
    nats_server: NatsServer, nats_bus: NatsBus
):
    await crash(nats_server, nats_bus)
    sending = asyncio.ensure_future(nats_bus.command(cmd("trainer", "job1"), text("c1"), id="c1"))
    await nats_server.start()
    await soon(sending)
    info = await nats_bus.js.call("STREAM.INFO.CMD")
    assert info["state"]["messages"] == 1


async def test_an_id_is_remembered_across_a_crash(nats_server: NatsServer, nats_bus: NatsBus):
    await nats_bus.command(cmd("trainer", "job1"), text("c1"), id="c1")
    await crash_and_restart(nats_server, nats_bus)
    await nats_bus.command(cmd("trainer", "job1"), text("c1"), id="c1")
    info = await nats_bus.js.call("STREAM.INFO.CMD")
    assert info["state"]["messages"] == 1


async def test_a_watch_goes_on_and_misses_no_key(nats_server: NatsServer, nats_bus: NatsBus):
    kv = await nats_bus.kv("jobs")
    await kv.put("a", b"1")
    async with aclosing(kv.watch()) as items:
        assert [type(await soon(anext(items))) for _ in range(2)] == [Entry, Settled]
        await crash_and_restart(nats_server, nats_bus)
        await kv.put("b", b"2")
        assert await soon(anext(items)) == Entry("b", b"2", 2)
        await kv.delete("a")
        assert (await soon(anext(items))).key == "a"


async def test_events_go_on_without_gap_or_repetition(nats_server: NatsServer, nats_bus: NatsBus):
    for number in range(3):
        await nats_bus.event(evt("scheduler", "job1"), text(str(number)))
    async with aclosing(nats_bus.events(evt("scheduler") + ".>", after=0)) as events:
        before = [(await soon(anext(events))).seq for _ in range(3)]
        await crash_and_restart(nats_server, nats_bus)
        for number in range(3, 6):
            await nats_bus.event(evt("scheduler", "job1"), text(str(number)))
        after = [(await soon(anext(events))).seq for _ in range(3)]
        assert before + after == [1, 2, 3, 4, 5, 6]


async def test_a_position_from_an_earlier_life_of_the_stream_begins_anew(nats_bus: NatsBus):
    await nats_bus.event(evt("scheduler", "job1"), text("a"))
    async with aclosing(nats_bus.events(evt("scheduler") + ".>", after=1000)) as events:
        assert (await soon(anext(events))).message(StringValue).value == "a"


async def test_a_log_reader_goes_on_behind_its_token(nats_server: NatsServer, nats_bus: NatsBus):
    log = JetStreamLog(nats_bus)
    await log.append("steps", "job1", text("a"), id="a")
    (first,) = await log.read("steps", key="job1", timeout_s=PATIENCE_S)
    await crash_and_restart(nats_server, nats_bus)
    await log.append("steps", "job1", text("b"), id="b")
    (second,) = await log.read("steps", key="job1", after=first.token, timeout_s=PATIENCE_S)
    assert second.message(StringValue).value == "b"
    await log.close()


async def test_a_lease_is_kept_through_a_short_absence_of_the_broker(
    nats_server: NatsServer, nats_bus: NatsBus
):
    lease = Lease(await nats_bus.kv("leases"), "job.1", owner="a", ttl_s=30.0, clock=SystemClock())
    fence = await lease.acquire()
    await crash_and_restart(nats_server, nats_bus)
    assert lease.fence == fence
    assert not lease.lost.is_set()
    await lease.release()
    assert await (await nats_bus.kv("leases")).keys() == []


async def test_values_survive_ten_crashes(nats_server: NatsServer, nats_bus: NatsBus):
    kv = await nats_bus.kv("jobs")
    revision = await kv.create("counter", b"0")
    for number in range(1, 11):
        await crash_and_restart(nats_server, nats_bus)
        revision = await kv.update("counter", b"%d" % number, revision)
    assert await kv.get("counter") == Entry("counter", b"10", revision)


async def test_a_client_that_the_library_gave_up_is_replaced(nats_server: NatsServer, nats_bus: NatsBus):
    await nats_bus.serve(rpc("echo"), StringValue, upper)
    async with aclosing(nats_bus.commands("trainer", concurrency=1)) as commands:
        waiting = asyncio.ensure_future(anext(commands))
        await asyncio.wait({waiting}, timeout=0.1)
        await nats_bus._nats._require().close()
        answer = await soon(nats_bus.request(rpc("echo"), text("a"), StringValue, timeout_s=PATIENCE_S))
        assert answer.value == "A"
        await nats_bus.command(cmd("trainer", "job1"), text("c1"), id="c1")
        assert (await soon(waiting)).envelope.id == "c1"


async def test_a_wrong_token_is_rejected_with_the_setting_at_fault(nats_server: NatsServer):
    bus = NatsBus(nats_server.url, credentials=Credentials(token="wrong"))
    with pytest.raises(Rejected, match=r"bus\.token_file"):
        await soon(bus.connect())


async def test_a_broker_that_is_not_there_is_unavailable(free_port: int):
    bus = NatsBus(f"nats://127.0.0.1:{free_port}")
    with pytest.raises(Unavailable, match=str(free_port)):
        await soon(bus.connect())


async def test_a_message_over_the_limit_is_rejected_and_the_connection_survives(nats_bus: NatsBus):
    with pytest.raises(Rejected, match="object storage"):
        await nats_bus.command(cmd("trainer", "job1"), BytesValue(value=bytes(2 << 20)), id="big")
    assert nats_bus.connected


async def test_the_topology_is_applied_once_and_differences_are_named(nats_bus: NatsBus):
    shape = topology.load()
    assert await topology.diff(nats_bus, shape) == []
    changed = replace(shape, streams=tuple(replace(each, max_messages=7) for each in shape.streams))
    differences = await topology.diff(nats_bus, changed)
    assert any("CMD" in line and "max_msgs 200000 -> 7" in line for line in differences)
    assert await topology.apply(nats_bus, changed) == differences
    assert await topology.diff(nats_bus, changed) == []


async def test_the_token_is_readable_by_its_owner_only_and_not_an_argument(nats_server: NatsServer):
    for name in ("nats.conf", "nats.token"):
        assert (nats_server.directory / name).stat().st_mode & 0o777 == 0o600
    arguments = Path(f"/proc/{nats_server.pid}/cmdline").read_bytes()  # noqa: ASYNC240  # procfs does not block
    assert nats_server.token.encode() not in arguments


async def test_a_busy_port_is_said(nats_server: NatsServer, tmp_path: Path):
    second = NatsServer(tmp_path / "second", port=nats_server.port)
    with pytest.raises(Unavailable, match=f"port {nats_server.port}"):
        await soon(second.start())
