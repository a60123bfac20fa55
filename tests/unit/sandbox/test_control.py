"""Control of live sandboxes over the bus, over the fake backend: what runs once, what streams, what is refused."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.unit.sandbox.worlds import LIMITS, World

from temper.api.sandbox.v1 import control_pb2 as control
from temper.api.sandbox.v1 import sandbox_pb2 as pb
from temper.runtime import topology
from temper.runtime.bus.base import Bus
from temper.runtime.errors import Rejected, Stale
from temper.runtime.testing import MemoryPlatform
from temper.sandbox.actor import SandboxActor
from temper.sandbox.control import Control, _entry
from temper.sandbox.convert import MOST_WALL_S, merge_limits, require, result_message
from temper.sandbox.engine.base import Capabilities, CommandResult, FileInfo, Isolation, Limits, Outcome
from temper.sandbox.engine.entries import EntryKind
from temper.sandbox.gate import Gate


class Caller:
    """Asks one host over the bus; session "s" lives there."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def ask(self, request: Any) -> Any:
        method = type(request).__name__.removesuffix("Request")
        module = pb if hasattr(pb, f"{method}Response") else control
        subject = topology.rpc("sandbox", "host-1", method)
        return await self._bus.request(subject, request, getattr(module, f"{method}Response"), timeout_s=60)

    async def execute(self, command: str, line: str, *, stream: bool = False) -> pb.CommandResult:
        request = pb.ExecRequest(
            session_id="s", command_id=command, argv=["/bin/sh", "-c", line], stream=stream
        )
        return (await self.ask(request)).result


@pytest_asyncio.fixture
async def caller(memory_platform: MemoryPlatform, tmp_path: Path) -> AsyncIterator[Caller]:
    made = World(tmp_path, memory_platform.clock)
    actor = SandboxActor(made.host, made.episodes, made.control, LIMITS, slots=4)
    subscriptions = await actor.serve(memory_platform.bus)
    asking = Caller(memory_platform.bus)
    await asking.ask(pb.AcquireRequest(session_id="s", lease_s=60))
    yield asking
    for subscription in subscriptions:
        await subscription.stop()
    await made.close()


async def test_a_streamed_command_is_read_by_offset_to_its_end(caller: Caller) -> None:
    reading = asyncio.create_task(
        caller.ask(control.ReadOutputRequest(session_id="s", stream_id="c", wait_s=30))
    )
    await asyncio.sleep(0)  # the reader comes first
    await caller.execute("c", "echo hi", stream=True)
    first = await reading
    assert [(each.stream, each.data) for each in first.chunks] == [(control.OUTPUT_STREAM_STDOUT, b"hi\n")]
    last = await caller.ask(control.ReadOutputRequest(session_id="s", stream_id="c", offset=first.offset))
    assert (list(last.chunks), last.ended) == ([], True)
    with pytest.raises(Stale, match="offset"):
        await caller.ask(control.ReadOutputRequest(session_id="s", stream_id="c", offset=0))


async def test_nothing_streams_that_was_not_asked_to(caller: Caller) -> None:
    await caller.execute("c", "echo hi")
    with pytest.raises(Rejected, match="streams"):
        await caller.ask(control.ReadOutputRequest(session_id="s", stream_id="c"))


async def test_a_snapshot_is_taken_once_and_gone_back_to(caller: Caller) -> None:
    request = control.SnapshotRequest(session_id="s", step=1, command_id="snap")
    taken = (await caller.ask(request)).snapshot_id
    assert (await caller.ask(request)).snapshot_id == taken
    await caller.ask(pb.PutFileRequest(session_id="s", path="/work/f", content=b"later"))
    await caller.execute("c", "cat /work/f")
    back = await caller.ask(control.RollbackRequest(session_id="s", step=3))
    assert (back.step, back.snapshot_id, back.forgotten) == (1, taken, 1)
    with pytest.raises(Rejected, match="no such file"):
        await caller.ask(pb.GetFileRequest(session_id="s", path="/work/f"))
    await caller.ask(control.RestoreRequest(session_id="s", snapshot_id=taken))
    forks = (
        await caller.ask(
            control.ForkRequest(session_id="s", snapshot_id=taken, fork_session_ids=["a", "b", "c", "d"])
        )
    ).forks
    assert [bool(each.epoch) for each in forks] == [True, True, True, False]
    assert "taken" in forks[3].error


@pytest.mark.parametrize(
    "request_",
    [
        control.StartProgramRequest(session_id="s", program_id="p"),
        control.ListProcessesRequest(session_id="s"),
        control.PutTreeRequest(session_id="s", content=b""),
        control.ListFilesRequest(session_id="s"),
    ],
    ids=lambda each: type(each).__name__,
)
async def test_what_the_backend_lacks_is_refused_by_name(caller: Caller, request_: Any) -> None:
    with pytest.raises(Rejected, match="this backend has no"):
        await caller.ask(request_)


@pytest.mark.parametrize(
    ("needs", "limits"),
    [
        (["sessions"], pb.Limits()),
        (["fork:999"], pb.Limits()),
        (["no such thing"], pb.Limits()),
        ([], pb.Limits(guarantee=pb.Guarantee(memory_bytes=1))),
    ],
)
async def test_a_need_that_is_not_met_is_refused_before_anything_begins(
    caller: Caller, needs: list[str], limits: pb.Limits
) -> None:
    with pytest.raises(Rejected, match="lacks"):
        await caller.ask(pb.AcquireRequest(session_id="t", lease_s=9, needs=needs, limits=limits))
    assert len((await caller.ask(pb.ListSessionsRequest())).sessions) == 1


async def test_a_session_that_is_gone_is_stale_for_every_call(caller: Caller) -> None:
    await caller.ask(pb.ReleaseRequest(session_id="s"))
    for request in (
        control.ListProcessesRequest(session_id="s"),
        control.SnapshotRequest(session_id="s", command_id="x"),
        control.RollbackRequest(session_id="s"),
        control.CloseProgramRequest(session_id="s", program_id="p"),
    ):
        with pytest.raises(Stale):
            await caller.ask(request)


async def test_a_command_names_a_program(caller: Caller) -> None:
    with pytest.raises(Rejected, match="argv"):
        await caller.ask(pb.ExecRequest(session_id="s", command_id="c"))
    assert (await caller.execute("c", "echo hi")).stdout == b"hi\n"  # the sandbox lives, the id is free


@pytest.mark.parametrize(
    "request_",
    [
        pb.ExecRequest(session_id="s", command_id="c", argv=["/bin/true"]),
        control.StartProgramRequest(session_id="s", program_id="p", argv=["/bin/true"]),
        control.RunScriptRequest(session_id="s", program_id="p", command_id="c", script="true"),
        control.WriteInputRequest(session_id="s", program_id="p", command_id="c", data=b"true\n"),
    ],
    ids=lambda request_: type(request_).__name__,
)
async def test_where_commands_need_a_word_no_other_call_runs_one(
    memory_platform: MemoryPlatform, tmp_path: Path, request_: Any
) -> None:
    made = World(tmp_path, memory_platform.clock)
    gate = made.episodes.gate = Gate(commands=True)
    controlled = Control(made.host, made.branches, LIMITS, made.blobs, gate)
    actor = SandboxActor(made.host, made.episodes, controlled, LIMITS, slots=4)
    subscriptions = await actor.serve(memory_platform.bus)
    asking = Caller(memory_platform.bus)
    await asking.ask(pb.AcquireRequest(session_id="s", lease_s=60))
    with pytest.raises(Rejected, match="approval"):
        await asking.ask(request_)
    for subscription in subscriptions:
        await subscription.stop()
    await made.close()


def test_names_and_errors_that_are_no_text_go_over_the_wire() -> None:
    entry = _entry(FileInfo("/work/\udcff", EntryKind.LINK, 0, 0o777, 0.0, "/etc/\udcfe"))
    assert (entry.path, entry.target) == ("/work/?", "/etc/?")
    assert result_message(CommandResult(Outcome.OK, error="E: \udcff"), "none").error == "E: ?"


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), 1e12])
def test_a_command_without_a_bound_is_refused(seconds: float) -> None:
    with pytest.raises(Rejected, match=r"limits\.wall_s: .*at most 2592000"):
        merge_limits(Limits(), pb.Limits(wall_s=seconds))
    assert merge_limits(Limits(), pb.Limits(wall_s=MOST_WALL_S)).wall_s == MOST_WALL_S


def test_a_snapshot_of_processes_is_refused_with_its_reason() -> None:
    has = Capabilities("namespaces", Isolation.NAMESPACE, snapshots=("files",))
    with pytest.raises(Rejected, match="snapshots:processes") as caught:
        require(has, ["snapshots:files", "snapshots:processes"], Limits())
    with pytest.raises(Rejected, match=r"lacks telepathy.*this one has .*fork:2"):
        require(replace(has, max_fork=2), ["telepathy"], Limits())
    assert "snapshots:files" in str(caught.value.hint)
