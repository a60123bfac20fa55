"""The client of live sandboxes, over a real broker, against hosts that do not answer."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from temper.api.sandbox.v1 import sandbox_pb2 as pb
from temper.client.sdk.sandbox import ALL, ANY, SandboxClient
from temper.client.sdk.sandboxes import Sandbox
from temper.runtime import topology
from temper.runtime.bus.nats import NatsBus
from temper.runtime.embedded import NatsServer
from temper.runtime.envelope import Envelope
from temper.runtime.errors import Stale, Unavailable


class Deaf:
    """A host that hears every request for a sandbox and answers none."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        """Name and request id of each Acquire."""
        self.withdrawn: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        """The same of what was taken back."""
        self.over = asyncio.Event()

    async def acquire(self, request: pb.AcquireRequest, envelope: Envelope) -> pb.AcquireResponse:
        self.asked.put_nowait((request.session_id, envelope.id))
        await self.over.wait()
        raise Stale("the test is over")

    async def release(self, request: pb.ReleaseRequest, _: Envelope) -> pb.ReleaseResponse:
        self.withdrawn.put_nowait((request.session_id, request.acquire_id))
        return pb.ReleaseResponse()


@pytest_asyncio.fixture
async def deaf(nats_bus: NatsBus) -> AsyncIterator[Deaf]:
    host = Deaf()
    await nats_bus.serve(topology.rpc("sandbox", ANY, "Acquire"), pb.AcquireRequest, host.acquire, queue=ANY)
    await nats_bus.serve(topology.rpc("sandbox", ALL, "Release"), pb.ReleaseRequest, host.release)
    yield host
    host.over.set()


async def test_who_stops_waiting_for_a_sandbox_takes_the_request_back(
    deaf: Deaf, nats_server: NatsServer
) -> None:
    async with SandboxClient(nats_server.url, nats_server.token_file) as client:
        creating = asyncio.create_task(client.create("a", lease_s=60))
        asked = await deaf.asked.get()
        creating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await creating
    assert await deaf.withdrawn.get() == asked


async def test_who_is_not_answered_in_time_takes_the_request_back(
    deaf: Deaf, nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("temper.client.sdk.sandbox.TIMEOUT_S", 0.1)
    async with SandboxClient(nats_server.url, nats_server.token_file) as client:
        with pytest.raises(Unavailable, match="no answer"):
            await client.create("a", lease_s=60)
    assert (await deaf.withdrawn.get())[0] == "a"


async def test_a_blocking_create_that_fails_takes_the_request_back(
    deaf: Deaf, nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("temper.client.sdk.sandbox.TIMEOUT_S", 0.1)

    def create() -> None:
        with pytest.raises(Unavailable, match="no answer"):
            Sandbox.create(bus_url=nats_server.url, bus_token_file=nats_server.token_file)

    await asyncio.to_thread(create)
    name, _ = await deaf.withdrawn.get()
    assert name.startswith("sdk-")
