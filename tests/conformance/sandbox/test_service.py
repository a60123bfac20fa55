"""The service as a black box: a real process, asked over a real broker, killed in mid-session."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.unit.sandbox.worlds import MANIFEST, SUM, tar

from temper.api.common.v1 import common_pb2
from temper.api.sandbox.v1 import sandbox_pb2 as pb
from temper.runtime import topology
from temper.runtime.blobs import BlobStore
from temper.runtime.bus.nats import NatsBus
from temper.runtime.embedded import NatsServer
from temper.runtime.errors import Stale, TemperError, Unavailable

START_S = 60.0
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
                    self.host = (await self.ask(ANY, "GetCapabilities", pb.GetCapabilitiesRequest())).host
                except Unavailable:
                    assert self.process.returncode is None, "the service ended at its start"
                    await asyncio.sleep(0.05)

    async def stop(self, how: signal.Signals) -> int:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(how)
        self.host = ""
        return await self.process.wait()

    async def ask(self, group: str, method: str, request: Any) -> Any:
        subject = topology.rpc("sandbox", group, method)
        return await self._bus.request(subject, request, getattr(pb, f"{method}Response"), timeout_s=60)


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
