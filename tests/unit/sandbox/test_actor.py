"""The service on a bus in memory: subjects, every method once, and the errors a caller sees."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.unit.sandbox.worlds import LIMITS, World

from temper.api.sandbox.v1 import sandbox_pb2 as pb
from temper.runtime import topology
from temper.runtime.bus.base import Bus
from temper.runtime.errors import Rejected, Stale, Unavailable
from temper.runtime.testing import MemoryPlatform
from temper.sandbox.actor import ALL, ANY, SandboxActor


class Caller:
    """Asks by method name."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def ask(self, group: str, method: str, request: Any) -> Any:
        reply_type = getattr(pb, f"{method}Response")
        return await self._bus.request(
            topology.rpc("sandbox", group, method), request, reply_type, timeout_s=30
        )


@pytest_asyncio.fixture
async def caller(memory_platform: MemoryPlatform, tmp_path: Path) -> AsyncIterator[Caller]:
    made = World(tmp_path, memory_platform.clock)
    actor = SandboxActor(made.host, made.episodes, made.control, LIMITS, slots=4)
    subscriptions = await actor.serve(memory_platform.bus)
    yield Caller(memory_platform.bus)
    for subscription in subscriptions:
        await subscription.stop()
    await made.close()


async def test_a_bare_sandbox_from_acquire_to_release(caller: Caller) -> None:
    acquired = await caller.ask(ANY, "Acquire", pb.AcquireRequest(session_id="a", lease_s=10))
    host = acquired.host
    request = pb.ExecRequest(session_id="a", command_id="1", argv=["echo", "hi"])
    reply = await caller.ask(host, "Exec", request)
    assert (reply.result.stdout, reply.result.exit_code, reply.result.outcome) == (b"hi\n", 0, pb.OUTCOME_OK)
    await caller.ask(host, "PutFile", pb.PutFileRequest(session_id="a", path="/work/f", content=b"12"))
    got = await caller.ask(host, "GetFile", pb.GetFileRequest(session_id="a", path="/work/f"))
    assert (got.content, got.truncated) == (b"12", False)
    await caller.ask(
        host, "RenewLease", pb.RenewLeaseRequest(session_id="a", epoch=acquired.epoch, lease_s=5)
    )
    listed = await caller.ask(host, "ListSessions", pb.ListSessionsRequest())
    assert [session.session_id for session in listed.sessions] == ["a"]
    assert (await caller.ask(host, "Release", pb.ReleaseRequest(session_id="a"))).released
    assert not (await caller.ask(host, "Release", pb.ReleaseRequest(session_id="a"))).released
    with pytest.raises(Stale):
        await caller.ask(host, "Exec", request)


async def test_the_deadline_of_an_acquire_is_its_callers(
    memory_platform: MemoryPlatform, tmp_path: Path
) -> None:
    made = World(tmp_path, memory_platform.clock)
    fake: Any = made.fake
    create, gate = fake.create, asyncio.Event()

    async def slow(*given: Any) -> Any:
        await gate.wait()
        return await create(*given)

    fake.create = slow
    actor = SandboxActor(made.host, made.episodes, made.control, LIMITS, slots=4)
    subscriptions = await actor.serve(memory_platform.bus)
    caller = Caller(memory_platform.bus)
    asking = asyncio.create_task(caller.ask(ANY, "Acquire", pb.AcquireRequest(session_id="a")))
    await memory_platform.clock.advance(31.0)
    with pytest.raises(Unavailable):
        await asking
    gate.set()
    await memory_platform.clock.settle()
    assert made.fake.live == set()
    with pytest.raises(Stale, match="given up"):
        await caller.ask(ANY, "Acquire", pb.AcquireRequest(session_id="a"))
    for subscription in subscriptions:
        await subscription.stop()
    await made.close()


async def test_what_is_said_to_all_hosts_takes_back_a_request_and_no_sandbox_of_others(
    caller: Caller,
) -> None:
    acquired = await caller.ask(ANY, "Acquire", pb.AcquireRequest(session_id="a", lease_s=10))
    with pytest.raises(Rejected, match="acquire_id"):
        await caller.ask(ALL, "Release", pb.ReleaseRequest(session_id="a"))
    request = pb.ReleaseRequest(session_id="a", acquire_id="not-this-one")
    assert not (await caller.ask(ALL, "Release", request)).released
    assert not (await caller.ask(acquired.host, "Release", request)).released
    listed = await caller.ask(acquired.host, "ListSessions", pb.ListSessionsRequest())
    assert [session.session_id for session in listed.sessions] == ["a"]


async def test_a_host_tells_what_it_can_do(caller: Caller) -> None:
    reply = await caller.ask(ANY, "GetCapabilities", pb.GetCapabilitiesRequest())
    assert (reply.backend, reply.isolation, reply.slots, reply.cgroup_mode) == ("fake", "none", 4, "none")
    assert list(reply.network_modes) == ["none"]


async def test_more_isolation_than_there_is_is_refused(caller: Caller) -> None:
    for wanted in ("namespace", "fortress"):
        request = pb.AcquireRequest(session_id="a", lease_s=10, min_isolation=wanted)
        with pytest.raises(Rejected, match="min_isolation"):
            await caller.ask(ANY, "Acquire", request)


async def test_calls_of_a_session_go_to_its_host_only(caller: Caller) -> None:
    with pytest.raises(Unavailable):
        await caller.ask(ANY, "Exec", pb.ExecRequest(session_id="a", command_id="1", argv=["true"]))
    with pytest.raises(Unavailable):
        await caller.ask("host-2", "Release", pb.ReleaseRequest(session_id="a"))


async def test_an_unknown_session_is_stale(caller: Caller) -> None:
    for method, request in {
        "Exec": pb.ExecRequest(session_id="x", command_id="1", argv=["true"]),
        "PutFile": pb.PutFileRequest(session_id="x", path="/work/f"),
        "GetFile": pb.GetFileRequest(session_id="x", path="/work/f"),
        "RenewLease": pb.RenewLeaseRequest(session_id="x", epoch=1, lease_s=1),
    }.items():
        with pytest.raises(Stale):
            await caller.ask("host-1", method, request)
