"""An actor asked over NATS against a raw nats-py request: 64 in flight, 1 KiB, throughput.

Both ways have the caller in this process and the answerer in another, on the same nats-server and on uvloop, and echo
the payload. The raw way is `Client.request` and `Msg.respond`, nothing else. The actor's way has all of it: envelope,
deadline, protobuf both ways, concurrency limit, mailbox, handler. Rounds alternate A B A B; the ratio is the median.

    python -m bench.actor_ask
    python -m bench.actor_ask --rounds 9 --requests 6000
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import nats
import nats.errors
import uvloop
from google.protobuf.wrappers_pb2 import BytesValue
from nats.aio.client import Client
from nats.aio.msg import Msg

from bench.result import report
from temper.runtime.actor import Actor, handles, spawn
from temper.runtime.bus.nats import Credentials, NatsBus
from temper.runtime.embedded import NatsServer
from temper.runtime.errors import Unavailable
from temper.runtime.host import Host, RemoteRef
from temper.runtime.supervisor import Supervisor

IN_FLIGHT, SIZE = 64, 1024
FLOOR, GOOD = 0.5, 0.75
RAW_SUBJECT = "bench.echo"
PATIENCE_S = 30.0

Ask = Callable[[], Awaitable[object]]


class Echo(Actor):
    """Says what it is told."""

    @handles(BytesValue)
    async def echo(self, message: BytesValue) -> BytesValue:
        """The same message."""
        return message


async def answer(url: str, token: str) -> None:
    """The other process: both answerers, until killed."""
    bus = NatsBus(url, name="bench/answerer", credentials=Credentials(token=token))
    await bus.connect()
    ref = spawn(Supervisor(), "echo", Echo)
    await Host(bus, Supervisor()).expose(ref, Echo, "bench", "echo")

    async def respond(message: Msg) -> None:
        await message.respond(message.data)

    raw = await nats.connect(url, token=token)
    await raw.subscribe(RAW_SUBJECT, cb=respond)
    await asyncio.Event().wait()


async def throughput(ask: Ask, requests: int) -> float:
    """Requests per second with `IN_FLIGHT` at a time."""
    left = requests

    async def worker() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await ask()

    began = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))
    return requests / (time.perf_counter() - began)


async def first_answer(ask: Ask) -> None:
    """Wait until the other process answers."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await ask()
            except (Unavailable, nats.errors.Error):
                await asyncio.sleep(0.05)
            else:
                return


async def measure(url: str, token: str, rounds: int, requests: int) -> tuple[list[float], list[float]]:
    """Throughputs of both ways, round by round."""
    raw: Client = await nats.connect(url, token=token)
    bus = NatsBus(url, name="bench/asker", credentials=Credentials(token=token))
    await bus.connect()
    remote = RemoteRef(bus, "bench", "echo")
    payload, message = os.urandom(SIZE), BytesValue(value=os.urandom(SIZE))

    def ask_raw() -> Awaitable[object]:
        return raw.request(RAW_SUBJECT, payload, timeout=PATIENCE_S)

    def ask_actor() -> Awaitable[object]:
        return remote.ask(message, BytesValue, timeout_s=PATIENCE_S)

    rates: tuple[list[float], list[float]] = ([], [])
    for ask in (ask_raw, ask_actor):
        await first_answer(ask)
        await throughput(ask, requests // 4)
    for _ in range(rounds):
        for ask, found in zip((ask_raw, ask_actor), rates, strict=True):
            found.append(await throughput(ask, requests))
    await bus.close()
    await raw.close()
    return rates


async def run(rounds: int, requests: int) -> None:
    """Start server and answerer, measure, report."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as directory:
        server = NatsServer(Path(directory))
        await server.start()
        environment = os.environ | {"BENCH_URL": server.url, "BENCH_TOKEN": server.token}
        answerer = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.actor_ask", env=environment
        )
        try:
            raw, actor = await measure(server.url, server.token, rounds, requests)
        finally:
            answerer.kill()
            await answerer.wait()
            await server.stop()
    for name, rates in (("raw nats-py", raw), ("actor", actor)):
        print(
            f"{name:<12} {statistics.median(rates):>8.0f} requests/s  ({min(rates):.0f} to {max(rates):.0f})"
        )
    ratios = [ours / theirs for ours, theirs in zip(actor, raw, strict=True)]
    report(
        "actor ask / raw nats request",
        statistics.median(ratios),
        floor=FLOOR,
        good=GOOD,
        load=load,
        asks_per_s=round(statistics.median(actor)),
    )


def main() -> None:
    """Parse arguments; the answerer is this script with its address in the environment."""
    if "BENCH_URL" in os.environ:
        uvloop.run(answer(os.environ["BENCH_URL"], os.environ["BENCH_TOKEN"]))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--requests", type=int, default=4000)
    arguments = parser.parse_args()
    uvloop.run(run(arguments.rounds, arguments.requests))


if __name__ == "__main__":
    main()
