"""The client of live sandboxes, over a real broker, against hosts that do not answer."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from temper.api.sandbox.v1 import control_pb2
from temper.api.sandbox.v1 import sandbox_pb2 as pb
from temper.client.sdk.sandbox import ALL, ANY, Place, SandboxClient
from temper.client.sdk.sandboxes import Sandbox
from temper.runtime import topology
from temper.runtime.bus.nats import NatsBus
from temper.runtime.embedded import NatsServer
from temper.runtime.envelope import Envelope
from temper.runtime.errors import Exhausted, Rejected, Stale, Unavailable


class Deaf:
    """A host that hears every request for a sandbox and answers none."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        """Name and request id of each Acquire."""
        self.withdrawn: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        """The same of what was taken back."""
        self.deadlines: list[float | None] = []
        self.over = asyncio.Event()

    async def acquire(self, request: pb.AcquireRequest, envelope: Envelope) -> pb.AcquireResponse:
        self.deadlines.append(envelope.deadline)
        self.asked.put_nowait((request.session_id, envelope.id))
        await self.over.wait()
        raise Stale("the test is over")

    async def release(self, request: pb.ReleaseRequest, envelope: Envelope) -> pb.ReleaseResponse:
        self.deadlines.append(envelope.deadline)
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


class Scripted:
    """A bus that answers each method as it is told to, in order; the last answer stays."""

    def __init__(self, **script: list[Any]) -> None:
        self.script = script
        self.sent: list[tuple[str, Any]] = []

    async def request(self, subject: str, request: Any, _: Any, *, timeout_s: float, **__: Any) -> Any:
        method = subject.rpartition(".")[2]
        self.sent.append((method, request))
        await asyncio.sleep(0)
        answers = self.script[method]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, asyncio.Event):
            await answer.wait()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def close(self) -> None:
        return


def scripted(on_wait: Any = None, **script: list[Any]) -> tuple[SandboxClient, Scripted]:
    client: Any = SandboxClient("nats://nowhere", on_wait=on_wait)
    client._bus = Scripted(**script)
    return client, client._bus


def silence() -> Unavailable:
    return Unavailable("no answer from temper.v1.rpc.sandbox.h.ReadOutput within 15 s")


def nobody() -> Unavailable:
    return Unavailable("nobody serves temper.v1.rpc.sandbox.h.ReadOutput", hint="it is not up")


async def ignore(_: bool, __: bytes) -> None:
    return


async def test_a_host_that_dies_under_a_command_is_told_without_waiting_for_the_command() -> None:
    client, bus = scripted(Exec=[asyncio.Event()], ReadOutput=[silence(), nobody()])
    with pytest.raises(Unavailable, match=r"no sandbox host 'h' is up.*ended with it"):
        await client.execute(Place("h", "a"), ["sleep", "600"], ignore, wall_s=600)
    assert len([method for method, _ in bus.sent if method == "ReadOutput"]) <= 5


async def test_an_answer_that_is_late_is_asked_for_again_at_the_same_offset() -> None:
    chunk = control_pb2.OutputChunk(stream=control_pb2.OUTPUT_STREAM_STDOUT, data=b"x")
    answers = [
        control_pb2.ReadOutputResponse(chunks=[chunk], offset=1),
        silence(),
        control_pb2.ReadOutputResponse(chunks=[chunk], offset=2, ended=True),
    ]
    client, bus = scripted(ReadOutput=answers)
    assert [each.data async for each in client.output(Place("h", "a"), "s")] == [b"x", b"x"]
    assert [request.offset for _, request in bus.sent] == [0, 1, 1]


async def test_a_watch_of_a_dead_host_ends_with_the_reason() -> None:
    begun = control_pb2.WatchFilesResponse()
    client, _ = scripted(WatchFiles=[begun, silence(), nobody()])
    changes = client.watch(Place("h", "a"))
    assert await anext(changes) is None
    with pytest.raises(Unavailable, match="no sandbox host 'h' is up"):
        await anext(changes)


async def test_a_command_that_waits_for_a_persons_word_is_asked_about_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("temper.client.sdk.sandbox._ASK_AGAIN_S", 0.0)
    waits = Exhausted("waits for approval 12", field="approval", hint="temper approvals grant 12")
    unknown = Rejected("nothing streams as it", field="stream_id")
    ended = control_pb2.ReadOutputResponse(ended=True)
    done = pb.ExecResponse(result=pb.CommandResult(exit_code=0))
    said: list[str] = []
    client, bus = scripted(
        said.append, Exec=[waits, waits, waits, done], ReadOutput=[unknown, unknown, ended]
    )
    assert (await client.execute(Place("h", "a"), ["true"], ignore)).exit_code == 0
    assert len({request.command_id for method, request in bus.sent if method == "Exec"}) == 1
    assert len([method for method, _ in bus.sent if method == "Exec"]) == 4
    assert len(said) == 1
    assert "approval 12" in said[0]


async def test_a_no_ends_the_wait_and_a_full_host_is_no_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("temper.client.sdk.sandbox._ASK_AGAIN_S", 0.0)
    waits = Exhausted("waits for approval 12", field="approval")
    client, _ = scripted(CallTool=[waits, Rejected("not approved", field="argv")])
    with pytest.raises(Rejected, match="not approved"):
        await client.call(Place("h", "a"), "python", {})
    full = Exhausted("all 4 sandboxes are taken")
    client, bus = scripted(Acquire=[full])
    with pytest.raises(Exhausted, match="taken"):
        await client.create("a", lease_s=1)
    assert [method for method, _ in bus.sent] == ["Acquire"]


async def test_what_is_taken_back_is_in_force_as_long_as_what_was_asked(
    deaf: Deaf, nats_server: NatsServer
) -> None:
    client = SandboxClient(nats_server.url, nats_server.token_file)
    async with client:
        creating = asyncio.create_task(client.create("a", lease_s=60))
        await deaf.asked.get()
        creating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await creating
    await deaf.withdrawn.get()
    asked, taken_back = deaf.deadlines
    assert taken_back is not None
    assert asked is not None
    assert taken_back >= asked
