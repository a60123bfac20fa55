"""Watches of files over the bus by the client's own hands: nothing is missed from the first word on."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from tests.unit.sandbox.worlds import LIMITS, World

from temper.api.sandbox.v1 import control_pb2
from temper.client.sdk.sandbox import Place, SandboxClient
from temper.runtime.errors import Rejected
from temper.runtime.testing import MemoryPlatform, eventually
from temper.sandbox.actor import SandboxActor
from temper.sandbox.build import stop
from temper.sandbox.engine.process import ProcessBackend

Stop = Callable[[], Awaitable[None]]


@pytest_asyncio.fixture
async def leave(memory_platform: MemoryPlatform, tmp_path: Path) -> AsyncIterator[Stop]:
    """A host that serves, and how it stops."""
    backend = ProcessBackend(slots=4, state_dir=tmp_path / "state")
    await backend.start()
    made = World(tmp_path, memory_platform.clock, backend=backend)
    actor = SandboxActor(made.host, made.episodes, made.control, LIMITS, slots=4)
    subscriptions = await actor.serve(memory_platform.bus)
    yield lambda: stop(made.control, subscriptions)
    await stop(made.control, subscriptions)
    await made.close()
    await backend.close()


@pytest.fixture
def client(memory_platform: MemoryPlatform, leave: Stop) -> SandboxClient:
    client = SandboxClient("nats://nowhere")
    client._bus = memory_platform.bus  # type: ignore[assignment] - the same calls
    return client


async def test_what_happens_after_the_first_word_is_told_in_order(client: SandboxClient) -> None:
    place = await client.create("s", lease_s=60)
    seen: list[tuple[int, str]] = []
    changes = client.watch(place)
    assert await anext(changes) is None
    await _sh(client, place, "echo 1 > a; rm a; mkdir d; echo 2 > d/b")
    async for change in changes:
        seen.append((change.kind, change.path))
        if (
            change.path == "/work/d/b"
        ):  # what was written before its folder was watched is told as created alone
            break
    await changes.aclose()
    names = [name for _, name in seen]
    assert seen[:3] == [
        (control_pb2.CHANGE_KIND_CREATED, "/work/a"),
        (control_pb2.CHANGE_KIND_MODIFIED, "/work/a"),
        (control_pb2.CHANGE_KIND_REMOVED, "/work/a"),
    ]
    assert names.index("/work/d") < names.index("/work/d/b")


async def test_a_watch_ends_with_its_sandbox_and_refuses_what_is_no_directory(client: SandboxClient) -> None:
    place = await client.create("s", lease_s=60)
    with pytest.raises(Rejected):
        await anext(client.watch(place, "/work/nothing"))
    changes = client.watch(place)
    assert await anext(changes) is None
    assert await client.release(place)
    assert [each async for each in changes] == []


async def test_a_host_that_stops_does_not_wait_for_those_who_watch(
    client: SandboxClient, leave: Stop, memory_platform: MemoryPlatform
) -> None:
    place = await client.create("s", lease_s=60)
    ask = control_pb2.WatchFilesRequest(session_id="s", watch_id="w", wait_s=30)
    watching = asyncio.create_task(client.ask(place.host, ask, control_pb2.WatchFilesResponse))
    await eventually(lambda: memory_platform.bus._asked)  # it is on its way, and nobody turns the clock
    await leave()
    assert await watching == control_pb2.WatchFilesResponse()  # nothing has happened


async def _sh(client: SandboxClient, place: Place, line: str) -> None:
    async def show(_: bool, __: bytes) -> None:
        return

    result = await client.execute(place, ["/bin/sh", "-c", line], show)
    assert result.exit_code == 0
