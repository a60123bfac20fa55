"""The standard tools in a bare sandbox, over the bus: the one gateway, and a person's word where it is asked for."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.unit.sandbox.worlds import LIMITS, World

from temper.api.sandbox.v1 import control_pb2, sandbox_pb2
from temper.runtime import topology
from temper.runtime.bus.base import Bus
from temper.runtime.errors import Rejected, Stale
from temper.runtime.testing import MemoryPlatform
from temper.sandbox.actor import SandboxActor
from temper.sandbox.gate import Gate
from temper.sandbox.gateway import Gateway
from temper.sandbox.seats import RemoteSeat
from temper.sandbox.toolcalls import ToolCalls


@pytest_asyncio.fixture
async def world(memory_platform: MemoryPlatform, tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path, memory_platform.clock)
    actor = SandboxActor(made.host, made.episodes, made.control, LIMITS, slots=4)
    subscriptions = await actor.serve(memory_platform.bus)
    yield made
    for subscription in subscriptions:
        await subscription.stop()
    await made.close()


def request(name: str, arguments: str, session: str = "s", command: str = "c") -> control_pb2.CallToolRequest:
    call = sandbox_pb2.ToolCall(name=name, arguments_json=arguments)
    return control_pb2.CallToolRequest(session_id=session, command_id=command, call=call)


async def ask(bus: Bus, asked: control_pb2.CallToolRequest) -> control_pb2.CallToolResponse:
    subject = topology.rpc("sandbox", "host-1", "CallTool")
    return await bus.request(subject, asked, control_pb2.CallToolResponse, timeout_s=60)


async def test_a_call_runs_once_and_a_bad_one_is_an_observation(
    world: World, memory_platform: MemoryPlatform
) -> None:
    bus = memory_platform.bus
    with pytest.raises(Stale):
        await ask(bus, request("python", '{"code": "1"}'))
    await bus.request(
        topology.rpc("sandbox", "any", "Acquire"),
        sandbox_pb2.AcquireRequest(session_id="s", lease_s=60),
        sandbox_pb2.AcquireResponse,
        timeout_s=60,
    )
    first = await ask(bus, request("pyhton", '{"code": 5}'))
    assert sorted(first.repairs) == ["tool_name", "type"]
    assert "[call repaired" in first.observation
    assert await ask(bus, request("pyhton", '{"code": 5}')) == first
    bad = await ask(bus, request("files", '{"op": "write"}'))
    assert (bad.refused, bad.is_error, bad.HasField("result")) == ("invalid_args", True, False)
    said = await ask(bus, request("submit", '{"answer": "7"}'))
    assert (said.answer, said.observation) == ("7", "submitted")


async def test_a_seat_on_a_platform_holds_one_sandbox_and_gives_it_back(
    world: World, memory_platform: MemoryPlatform
) -> None:
    seat = RemoteSeat(memory_platform.bus, memory_platform.clock, isolation="", lease_s=30.0, wall_s=5.0)
    async with seat:
        assert len(world.host.sessions) == 1
        reply = await seat.call("python", '{"code": "1 + 1"}')
        assert not reply.refused
    assert len(world.host.sessions) == 0


async def test_a_seat_takes_no_sandbox_that_isolates_less_than_asked(
    world: World, memory_platform: MemoryPlatform
) -> None:
    seat = RemoteSeat(memory_platform.bus, memory_platform.clock, isolation="vm", lease_s=30.0, wall_s=5.0)
    with pytest.raises(Rejected, match="isolates"):
        async with seat:
            pass
    assert len(world.host.sessions) == 0


@pytest.mark.parametrize("gate", [Gate(tools=("py*",)), Gate(commands=True)], ids=["by name", "commands"])
async def test_what_needs_a_persons_word_does_not_run_without_anybody_to_ask(
    world: World, gate: Gate
) -> None:
    calls = ToolCalls(world.host, LIMITS, gate, Gateway(world.episodes._clock))
    with pytest.raises(Rejected, match="approval"):
        await calls.call_tool(request("python", '{"code": "1"}'))
