"""Traffic of every kind while the broker is killed again and again: the books balance at the end."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from google.protobuf.wrappers_pb2 import StringValue

from temper.runtime import topology
from temper.runtime.bus.base import Entry
from temper.runtime.bus.nats import Credentials, NatsBus
from temper.runtime.embedded import NatsServer
from temper.runtime.errors import Conflict, Unavailable
from temper.runtime.log.base import Token
from temper.runtime.log.jetstream import JetStreamLog
from temper.runtime.testing import eventually
from temper.runtime.topology import cmd, evt

COMMANDS, CRASHES, WORKERS = 120, 6, 3
PATIENCE_S = 120.0


def text(value: str) -> StringValue:
    return StringValue(value=value)


async def client(server: NatsServer, name: str) -> NatsBus:
    bus = NatsBus(server.url, name=name, credentials=Credentials(token=server.token))
    await bus.connect()
    return bus


async def publisher(bus: NatsBus, pace: asyncio.Semaphore) -> None:
    for number in range(COMMANDS):
        await pace.acquire()
        await bus.command(cmd("trainer", "job1"), text(f"c{number}"), id=f"c{number}")


async def worker(bus: NatsBus, log: JetStreamLog) -> None:
    """Each command becomes one record and one event; then it is acked."""
    async with aclosing(bus.commands("trainer", concurrency=4, ack_wait_s=2.0)) as commands:
        async for delivery in commands:
            name = delivery.envelope.id
            try:
                await log.append("steps", "job1", text(name), id=f"r-{name}")
                await bus.event(evt("trainer", "job1"), text(name), id=f"e-{name}")
                await delivery.ack()
            except Unavailable:
                continue  # comes again


async def test_nothing_is_lost_and_nothing_happens_twice(nats_server: NatsServer, nats_bus: NatsBus):
    buses = [await client(nats_server, f"worker/{number}") for number in range(WORKERS)]
    logs = [JetStreamLog(bus) for bus in buses]
    pace = asyncio.Semaphore(0)
    workers = [asyncio.ensure_future(worker(bus, log)) for bus, log in zip(buses, logs, strict=True)]
    publishing = asyncio.ensure_future(publisher(nats_bus, pace))
    watched: list[bytes] = []
    watching = asyncio.ensure_future(watch(nats_bus, watched))

    async with asyncio.timeout(PATIENCE_S):
        per_crash = COMMANDS // 2 // CRASHES
        done = 0
        for number in range(CRASHES):
            counting = asyncio.ensure_future(counted(nats_bus, done, per_crash, pace))
            await asyncio.wait(
                {counting}, timeout=0.05 * (number % 3)
            )  # die at different moments of the work
            await nats_server.kill()
            await eventually(lambda: not nats_bus.connected)
            await nats_server.start()
            done = await counting
        await publishing
        await eventually(lambda: _queue_is_empty(nats_bus), within_s=PATIENCE_S)
        await eventually(lambda: watched[-1:] == [b"%d" % done])

    wanted = {f"c{number}" for number in range(COMMANDS)}
    assert await recorded(JetStreamLog(nats_bus)) == sorted(wanted)
    assert await told(nats_bus) == sorted(wanted)
    assert watched == sorted(watched, key=int)
    assert await nats_bus.dead_letters() == []
    for task in [*workers, watching]:
        task.cancel()
    await asyncio.wait([*workers, watching])
    for log in logs:
        await log.close()
    for bus in buses:
        await bus.close()


async def counted(bus: NatsBus, done: int, rounds: int, pace: asyncio.Semaphore) -> int:
    """Count on from `done`, one compare-and-set at a time; each success lets two commands out."""
    kv = await bus.kv("jobs")
    for _ in range(rounds):
        entry = await kv.get("counter")
        assert (int(entry.value) if entry else 0) == done
        done += 1
        try:
            value = b"%d" % done
            await (
                kv.create("counter", value) if entry is None else kv.update("counter", value, entry.revision)
            )
        except Conflict as conflict:
            raise AssertionError("a write was taken for somebody else's") from conflict
        pace.release()
        pace.release()
    return done


async def watch(bus: NatsBus, seen: list[bytes]) -> None:
    kv = await bus.kv("jobs")
    async with aclosing(kv.watch()) as items:
        async for item in items:
            if isinstance(item, Entry):
                seen.append(item.value)  # noqa: PERF401  # others look at it while it grows


async def _queue_is_empty(bus: NatsBus) -> bool:
    return (await bus.js.call(f"STREAM.INFO.{topology.CMD}"))["state"]["messages"] == 0


async def recorded(log: JetStreamLog) -> list[str]:
    """Names in the log, repetitions included."""
    names: list[str] = []
    after: Token | None = None
    end = await log.end("steps")
    while after != end:
        for record in await log.read("steps", after=after, timeout_s=5.0):
            names.append(record.message(StringValue).value)
            after = record.token
    await log.close()
    return sorted(names)


async def told(bus: NatsBus) -> list[str]:
    """Names in the events, repetitions included."""
    last = await bus.js.last_seq(topology.EVT)
    names: list[str] = []
    async with aclosing(bus.events(evt("trainer") + ".>", after=0)) as events:
        async for event in events:
            names.append(event.message(StringValue).value)
            if event.seq == last:
                break
    return sorted(names)
