import asyncio
import json

import pytest
from tests.unit.rollout.world import ENV, JOB, SandboxHost

from temper.api.sandbox.v1 import sandbox_pb2 as sandbox
from temper.rollout.calls import Said
from temper.rollout.sandbox import Sandboxes, TaskRef
from temper.runtime import topology
from temper.runtime.errors import Exhausted, Unavailable
from temper.runtime.testing import MemoryPlatform

CALL = Said("python", json.dumps({"code": "2+3"}))


def client(platform: MemoryPlatform) -> Sandboxes:
    return Sandboxes(platform.bus, platform.clock, call_timeout_s=5, lease_s=30, host_wait_s=10)


def task(index: int = 4) -> TaskRef:
    return TaskRef(ENV, "train", index, JOB)


async def test_later_calls_go_to_the_host_of_the_first(memory_platform: MemoryPlatform):
    first = SandboxHost(memory_platform.bus.client("sandbox/h1"), host="h1")
    await first.serve()
    sandboxes = client(memory_platform)
    session = sandboxes.session("e1", task())
    response = await session.step(0, CALL, 100)
    assert (response.observation, session.host) == ("5", "h1")
    second = SandboxHost(memory_platform.bus.client("sandbox/h2"), host="h2")
    await second.serve()
    for turn in range(1, 6):
        await session.step(turn, CALL, 100)
    assert first.calls == [f"e1#{turn}" for turn in range(6)]
    assert (await session.finish("5", [], 100)).reward == 1
    assert first.live == set()


async def test_any_host_is_waited_for_while_there_is_none(memory_platform: MemoryPlatform):
    clock = memory_platform.clock
    asked = asyncio.ensure_future(client(memory_platform).materialize(ENV, "train", [1], [], 100))
    await clock.advance(3)
    assert not asked.done()
    await SandboxHost(memory_platform.bus).serve()
    await clock.advance(2)
    assert (await asked).tasks[0].prompt == "1+1="


async def test_the_wait_for_a_host_has_an_end(memory_platform: MemoryPlatform):
    asked = asyncio.ensure_future(client(memory_platform).materialize(ENV, "train", [1], [], 100))
    await memory_platform.clock.advance(15)
    with pytest.raises(Unavailable, match="nobody serves"):
        await asked


async def test_a_sessions_own_host_that_is_gone_is_known_at_once(memory_platform: MemoryPlatform):
    there = memory_platform.bus.client("sandbox/h1")
    await SandboxHost(there).serve()
    session = client(memory_platform).session("e1", task())
    await session.step(0, CALL, 100)
    await there.close()
    with pytest.raises(Unavailable):
        await session.step(1, CALL, 100)


async def test_a_full_host_is_asked_again(memory_platform: MemoryPlatform):
    refusals = [Exhausted("full")] * 4

    async def crowded(request: sandbox.StepRequest, _: object) -> sandbox.StepResponse:
        if refusals:
            raise refusals.pop()
        return sandbox.StepResponse(host="h1", observation=json.loads(request.call.arguments_json)["code"])

    await memory_platform.bus.serve(topology.rpc("sandbox", "any", "Step"), sandbox.StepRequest, crowded)
    asked = asyncio.ensure_future(client(memory_platform).session("e1", task()).step(0, CALL, 100))
    await memory_platform.clock.advance(5)
    assert (await asked).observation == "2+3"


async def test_no_call_outlives_its_deadline(memory_platform: MemoryPlatform):
    with pytest.raises(Unavailable, match="no time is left for Materialize"):
        await client(memory_platform).materialize(ENV, "train", [1], [], memory_platform.clock.monotonic())


async def test_abandoning_releases_what_was_acquired_and_nothing_else(memory_platform: MemoryPlatform):
    host = SandboxHost(memory_platform.bus)
    await host.serve()
    session = client(memory_platform).session("e1", task())
    await session.abandon()
    assert host.calls == []
    await session.step(0, CALL, 100)
    assert host.live == {"e1"}
    await session.abandon()
    assert host.live == set()
    assert host.answers == {}
