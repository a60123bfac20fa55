"""The service as a black box: a real process, asked over a real broker, killed in mid-session."""

import asyncio
import io
import json
import signal
import sys
import tarfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.unit.sandbox.worlds import MANIFEST, SUM, tar

from temper.api.common.v1 import common_pb2
from temper.api.sandbox.v1 import control_pb2 as control
from temper.api.sandbox.v1 import sandbox_pb2 as pb
from temper.runtime import topology
from temper.runtime.blobs import BlobStore
from temper.runtime.bus.nats import NatsBus
from temper.runtime.embedded import NatsServer
from temper.runtime.errors import Rejected, Stale, TemperError, Unavailable
from temper.runtime.testing import eventually

START_S = 180.0
CALL_S = 120.0
PING_S = 5.0
"""The broker may hand a call to a service that was killed a moment ago: then nobody answers."""
ANY = "any"


class Service:
    """One service process and a way to ask it."""

    def __init__(self, server: NatsServer, bus: NatsBus, directory: Path, backend: str) -> None:
        self._bus = bus
        self._settings = {
            "bus.url": server.url,
            "bus.token_file": server.token_file,
            "blobs.url": f"file://{directory / 'objects'}",
            "state_dir": directory / "sandbox",
            "metrics.port": 0,
            "backend": backend,
            "allow_weak": "true",
            "slots": 8,
            "first_uid": 330_000,
        }
        self.process: asyncio.subprocess.Process | None = None
        self.host = ""

    async def start(self) -> None:
        arguments = [part for key, value in self._settings.items() for part in ("--set", f"{key}={value}")]
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "temper.sandbox", *arguments
        )
        async with asyncio.timeout(START_S):
            while not self.host:
                try:
                    ping = pb.GetCapabilitiesRequest()
                    self.host = (await self.ask(ANY, "GetCapabilities", ping, PING_S)).host
                except Unavailable:
                    assert self.process.returncode is None, "the service ended at its start"
                    await asyncio.sleep(0.05)

    async def stop(self, how: signal.Signals) -> int:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(how)
        self.host = ""
        return await self.process.wait()

    async def ask(self, group: str, method: str, request: Any, timeout_s: float = CALL_S) -> Any:
        subject = topology.rpc("sandbox", group, method)
        module = pb if hasattr(pb, f"{method}Response") else control
        reply = getattr(module, f"{method}Response")
        return await self._bus.request(subject, request, reply, timeout_s=timeout_s)


@pytest_asyncio.fixture
async def start(
    nats_server: NatsServer, nats_bus: NatsBus, tmp_path: Path
) -> AsyncIterator[Callable[[], Service]]:
    made: list[Service] = []
    backend = await working_backend()

    def make() -> Service:
        made.append(Service(nats_server, nats_bus, tmp_path, backend))
        return made[-1]

    yield make
    for service in made:
        if service.process is not None and service.process.returncode is None:
            await service.stop(signal.SIGKILL)


async def working_backend() -> str:
    doctor = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "temper.sandbox.doctor", stdout=asyncio.subprocess.DEVNULL
    )
    return "process" if await doctor.wait() else "namespaces"


@pytest_asyncio.fixture
async def env(tmp_path: Path) -> common_pb2.EnvRef:
    ref = await BlobStore(f"file://{tmp_path / 'objects'}").put(
        "bundles/sum.tar", tar({"env.toml": MANIFEST, "env.py": SUM})
    )
    return common_pb2.EnvRef(
        name="sum", version="1.0.0", digest="a" * 64, bundle=ref, params_json='{"offset":40}'
    )


def step(env: common_pb2.EnvRef, session: str, turn: int, code: str) -> pb.StepRequest:
    call = pb.ToolCall(name="python", arguments_json=json.dumps({"code": code}))
    return pb.StepRequest(
        session_id=session,
        command_id=f"{session}#{turn}",
        env=env,
        split="train",
        task_index=2,
        call=call,
        job_id="job-1",
    )


async def test_an_episode_from_task_to_verdict(start: Callable[[], Service], env: common_pb2.EnvRef) -> None:
    service = start()
    await service.start()
    tasks = await service.ask(
        ANY, "Materialize", pb.MaterializeRequest(env=env, split="train", task_indices=[2])
    )
    assert tasks.tasks[0].prompt == "2 + 40"
    first = await service.ask(ANY, "Step", step(env, "s", 0, "x = 40"))
    second = await service.ask(first.host, "Step", step(env, "s", 1, "x + 2"))
    assert second.observation == "42"
    assert await service.ask(first.host, "Step", step(env, "s", 1, "x + 2")) == second
    finish = pb.FinishRequest(
        session_id="s", env=env, split="train", task_index=2, answer="42", job_id="job-1"
    )
    verdict = await service.ask(first.host, "Finish", finish)
    assert (verdict.reward, verdict.solved) == (1.0, True)
    assert await service.ask(first.host, "Finish", finish) == verdict
    with pytest.raises(Stale):
        await service.ask(first.host, "Step", step(env, "s", 2, "1"))
    assert await service.stop(signal.SIGTERM) == 0


async def test_a_killed_host_is_gone_at_once_and_its_successor_plays_the_episode_anew(
    start: Callable[[], Service], env: common_pb2.EnvRef
) -> None:
    first = start()
    await first.start()
    host = (await first.ask(ANY, "Step", step(env, "s", 0, "x = 1"))).host
    await first.stop(signal.SIGKILL)
    with pytest.raises(TemperError):
        await first.ask(host, "Step", step(env, "s", 1, "x"))
    second = start()
    await second.start()
    assert second.host != host
    again = await second.ask(ANY, "Step", step(env, "s-retry", 0, "x"))
    assert again.is_error
    assert again.observation.startswith("NameError")
    assert await second.stop(signal.SIGTERM) == 0


async def test_many_episodes_at_once_all_end_with_their_own_verdict(
    start: Callable[[], Service], env: common_pb2.EnvRef
) -> None:
    service = start()
    await service.start()

    async def play(index: int) -> float:
        reply = await service.ask(ANY, "Step", step(env, f"s{index}", 0, f"{index} + 0"))
        request = pb.FinishRequest(
            session_id=f"s{index}", env=env, split="train", task_index=2, answer=reply.observation
        )
        return (await service.ask(reply.host, "Finish", request)).reward

    rewards = await asyncio.gather(*(play(index) for index in range(36, 48)))
    assert rewards == [float(index == 42) for index in range(36, 48)]
    listed = await service.ask(service.host, "ListSessions", pb.ListSessionsRequest())
    assert not listed.sessions
    assert await service.stop(signal.SIGTERM) == 0


async def acquire(service: Service, name: str) -> str:
    request = pb.AcquireRequest(session_id=name, lease_s=120, needs=["sessions", "snapshots:files"])
    return (await service.ask(ANY, "Acquire", request)).host


async def listen(service: Service, session: str, stream: str) -> bytes:
    heard, offset, ended = b"", 0, False
    while not ended:
        request = control.ReadOutputRequest(session_id=session, stream_id=stream, offset=offset, wait_s=5)
        reply = await service.ask(service.host, "ReadOutput", request)
        heard += b"".join(chunk.data for chunk in reply.chunks)
        offset, ended = reply.offset, reply.ended
    return heard


async def test_a_command_streams_over_the_bus_more_than_a_message_holds(start: Callable[[], Service]) -> None:
    service = start()
    await service.start()
    await acquire(service, "s")
    program = "import os\nfor _ in range(64): os.write(1, b'x' * 65536)"
    request = pb.ExecRequest(
        session_id="s", command_id="c", argv=["python3", "-S", "-c", program], stream=True
    )
    ended, heard = await asyncio.gather(service.ask(service.host, "Exec", request), listen(service, "s", "c"))
    assert len(heard) == 64 * 65536
    assert ended.result.outcome == pb.OUTCOME_OUTPUT_TRUNCATED
    assert await service.ask(service.host, "Exec", request) == ended  # not run again


async def test_a_shell_a_terminal_and_the_processes_in_them(start: Callable[[], Service]) -> None:
    service = start()
    await service.start()
    await acquire(service, "s")
    shell = control.StartProgramRequest(session_id="s", program_id="sh")
    assert await service.ask(service.host, "StartProgram", shell) == await service.ask(
        service.host, "StartProgram", shell
    )
    script = control.RunScriptRequest(session_id="s", program_id="sh", command_id="1", script="A=1; (exit 3)")
    assert (await service.ask(service.host, "RunScript", script)).result.exit_code == 3
    script = control.RunScriptRequest(
        session_id="s", program_id="sh", command_id="2", script="echo $A; sleep 700 &"
    )
    assert (await service.ask(service.host, "RunScript", script)).result.stdout == b"1\n"
    terminal = control.StartProgramRequest(
        session_id="s",
        program_id="tty",
        argv=["sh", "-c", "stty size; read x; echo got $x"],
        terminal=True,
        rows=9,
        columns=40,
        stream=True,
    )
    await service.ask(service.host, "StartProgram", terminal)
    typed = control.WriteInputRequest(session_id="s", program_id="tty", command_id="3", data=b"it\n")
    for _ in range(2):  # a repeat is not typed twice
        await service.ask(service.host, "WriteInput", typed)
    heard = await listen(service, "s", "tty")
    assert b"9 40" in heard
    assert heard.count(b"got it") == 1

    async def listed() -> bool:
        reply = await service.ask(service.host, "ListProcesses", control.ListProcessesRequest(session_id="s"))
        return any(
            list(each.argv[-2:]) == ["sleep", "700"] and each.program_id == "sh" for each in reply.processes
        )

    await eventually(listed)
    await service.ask(
        service.host, "CloseProgram", control.CloseProgramRequest(session_id="s", program_id="sh")
    )
    reply = await service.ask(service.host, "ListProcesses", control.ListProcessesRequest(session_id="s"))
    assert not reply.processes


async def test_a_step_is_taken_back_and_a_snapshot_forked(start: Callable[[], Service]) -> None:
    service = start()
    await service.start()
    host = await acquire(service, "s")

    async def run(session: str, command: str, script: str) -> bytes:
        request = pb.ExecRequest(session_id=session, command_id=command, argv=["sh", "-c", script])
        return (await service.ask(host, "Exec", request)).result.stdout

    await run("s", "c1", "echo one > f")
    request = control.SnapshotRequest(session_id="s", step=1, command_id="snap")
    taken = (await service.ask(host, "Snapshot", request)).snapshot_id
    assert await run("s", "c2", "echo two > f; cat f") == b"two\n"
    back = await service.ask(host, "Rollback", control.RollbackRequest(session_id="s", step=1))
    assert (back.step, back.snapshot_id, back.forgotten) == (1, taken, 1)
    assert await run("s", "c2", "cat f") == b"one\n"  # the same id runs anew
    forks = await service.ask(
        host, "Fork", control.ForkRequest(session_id="s", snapshot_id=taken, fork_session_ids=["f1", "f2"])
    )
    assert all(each.epoch and not each.error for each in forks.forks)
    await run("f1", "c", "echo mine > f")
    assert await run("f2", "c", "cat f") == b"one\n"
    tree = await service.ask(host, "GetTree", control.GetTreeRequest(session_id="f1"))
    with tarfile.open(fileobj=io.BytesIO(tree.content)) as archive:
        assert archive.getnames() == ["f"]


async def test_what_the_backend_lacks_is_refused_before_anything_begins(start: Callable[[], Service]) -> None:
    service = start()
    await service.start()
    request = pb.AcquireRequest(session_id="s", lease_s=9, needs=["sessions", "snapshots:processes"])
    with pytest.raises(Rejected, match="snapshots:processes"):
        await service.ask(ANY, "Acquire", request)
    listed = await service.ask(service.host, "ListSessions", pb.ListSessionsRequest())
    assert not listed.sessions


async def test_a_sandbox_by_hand(
    start: Callable[[], Service], nats_server: NatsServer, tmp_path: Path
) -> None:
    await start().start()
    where = ["--bus-url", nats_server.url, "--bus-token-file", str(nats_server.token_file)]

    async def temper(verb: str, *words: str, typed: bytes = b"") -> tuple[int, str, str]:
        ours, theirs = [each for each in words if each != "--"], []
        if "--" in words:
            at = words.index("--")
            ours, theirs = list(words[:at]), list(words[at:])
        command = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "import sys; from temper.client.cli import main; sys.exit(main())", "sandbox", verb, *ours, *where, *theirs,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, err = await command.communicate(typed)
        return command.returncode or 0, out.decode(), err.decode()

    code, said, _ = await temper("create", "--need", "sessions", "--lease", "120")
    place = said.strip()
    assert code == 0
    assert await temper("exec", place, "--", "sh", "-c", "echo out; echo err >&2") == (0, "out\n", "err\n")
    code, _, told = await temper("exec", place, "--", "sh", "-c", "exit 7")
    assert (code, told.split(",")[0]) == (1, "exit code 7")
    (tmp_path / "in" / "d").mkdir(parents=True)
    (tmp_path / "in" / "d" / "f").write_text("1")
    assert (await temper("put", place, str(tmp_path / "in"), "/work"))[0] == 0
    assert (await temper("get", place, "/work/d/f", str(tmp_path / "out")))[0] == 0
    assert (tmp_path / "out").read_text() == "1"
    taken = (await temper("snapshot", place, "--step", "1"))[1].strip()
    assert (await temper("exec", place, "--", "rm", "-r", "d"))[0] == 0
    assert (await temper("rollback", place, "1"))[0] == 0
    assert "/work/d/f" in (await temper("ls", place, "--depth", "2"))[1]
    assert (await temper("fork", place, taken, "twin"))[0] == 0
    code, said, _ = await temper("shell", place, "--", "sh", "-c", "read x; echo got $x", typed=b"it\n")
    assert (code, "got it" in said) == (0, True)
    assert (await temper("ps", place, "-o", "json"))[1].strip() == "[]"
    assert (await temper("delete", place))[2] == "deleted\n"
    assert (await temper("exec", place, "--", "true"))[0] == 4
