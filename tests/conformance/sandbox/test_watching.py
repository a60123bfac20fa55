"""Watches of files over the bus by the client's own hands: nothing is missed from the first word on."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.unit.sandbox.worlds import LIMITS, World

from temper.api.sandbox.v1 import control_pb2
from temper.client.sdk.sandbox import Place, SandboxClient
from temper.runtime.errors import Rejected
from temper.runtime.testing import MemoryPlatform
from temper.sandbox.actor import SandboxActor
from temper.sandbox.engine.process import ProcessBackend


@pytest_asyncio.fixture
async def client(memory_platform: MemoryPlatform, tmp_path: Path) -> AsyncIterator[SandboxClient]:
    backend = ProcessBackend(slots=4, state_dir=tmp_path / "state")
    await backend.start()
    made = World(tmp_path, memory_platform.clock, backend=backend)
    actor = SandboxActor(made.host, made.episodes, made.control, LIMITS, slots=4)
    subscriptions = await actor.serve(memory_platform.bus)
    client = SandboxClient("nats://nowhere")
    client._bus = memory_platform.bus  # type: ignore[assignment] - the same calls
    yield client
    for subscription in subscriptions:
        await subscription.stop()
    await made.close()
    await backend.close()


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


async def _sh(client: SandboxClient, place: Place, line: str) -> None:
    async def show(_: bool, __: bytes) -> None:
        return

    result = await client.execute(place, ["/bin/sh", "-c", line], show)
    assert result.exit_code == 0
