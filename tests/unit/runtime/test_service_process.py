"""The life cycle of a service, on a real process and a real broker."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from temper.api.job.v1 import platform_pb2 as pb
from temper.api.job.v1 import platform_pb2_grpc as pb_grpc
from temper.runtime import topology
from temper.runtime.bus.nats import NatsBus
from temper.runtime.embedded import NatsServer
from temper.runtime.rpc import channel
from temper.runtime.testing import eventually

SERVICE = Path(__file__).with_name("example_service.py")
PATIENCE_S = 60


@dataclass
class Process:
    child: asyncio.subprocess.Process
    seen: list[str] = field(default_factory=list[str])

    async def until(self, word: str) -> str:
        assert self.child.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            while line := (await self.child.stdout.readline()).decode().strip():
                self.seen.append(line)
                if line.startswith(word):
                    return line
        raise AssertionError(f"{word!r} never came: {self.seen}, {await self.errors()}")

    async def errors(self) -> str:
        assert self.child.stderr is not None
        return (await self.child.stderr.read()).decode()

    async def ended(self) -> tuple[int, list[str], str]:
        async with asyncio.timeout(PATIENCE_S):
            out, err = await self.child.communicate()
        return self.child.returncode or 0, self.seen + out.decode().split("\n")[:-1], err.decode()


Start = Callable[..., Awaitable[Process]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    children: list[asyncio.subprocess.Process] = []

    async def run(*arguments: str, **environ: str) -> Process:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            str(SERVICE),
            *("--instance", "one", "--set", f"blobs.url=file://{tmp_path}/objects"),
            *arguments,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **environ},
        )
        children.append(child)
        return Process(child)

    yield run
    for child in children:
        if child.returncode is None:
            child.kill()
            await child.communicate()


@pytest.fixture
def broker(nats_server: NatsServer) -> list[str]:
    """Arguments that connect a service to the broker of the test."""
    return ["--set", f"bus.url={nats_server.url}", "--set", f"bus.token_file={nats_server.token_file}"]


async def presence(bus: NatsBus) -> pb.Presence | None:
    entry = await (await bus.kv("presence")).get("example.one")
    return pb.Presence.FromString(entry.value) if entry else None


async def ready(bus: NatsBus) -> pb.Presence:
    async def look() -> list[pb.Presence]:
        found = await presence(bus)
        return [found] if found is not None and found.state == "ready" else []

    (there,) = await eventually(look, what="presence says ready")
    return there


async def test_sigterm_drains_in_order_and_exits_zero(
    start: Start, broker: list[str], nats_bus: NatsBus
) -> None:
    process = await start(*broker)
    await ready(nats_bus)
    process.child.send_signal(signal.SIGTERM)
    code, said, _ = await process.ended()
    assert (code, said) == (0, ["built", "drain-second", "drain-first ready=draining", "tasks-cancelled"])
    assert await presence(nats_bus) is None


async def test_a_ready_service_is_present_healthy_and_measured(
    start: Start, broker: list[str], nats_bus: NatsBus
) -> None:
    process = await start(*broker, "--set", "grpc.port=0")
    there = await ready(nats_bus)
    assert (there.service, there.instance, there.pid) == ("example", "one", process.child.pid)
    assert there.status["slots"] == "2"
    opened = channel(there.status["grpc"])
    answer = await health_pb2_grpc.HealthStub(opened).Check(health_pb2.HealthCheckRequest(), timeout=20)  # type: ignore[attr-defined]  # no stubs
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    await pb_grpc.PlatformServiceStub(opened).ListServices(pb.ListServicesRequest(), timeout=20)
    await opened.close()
    metrics = await http(there.status["metrics"], "/metrics")
    assert "temper_grpc_seconds_count" in metrics
    assert "200" in (await http(there.status["metrics"], "/readyz")).splitlines()[0]


async def http(address: str, path: str) -> str:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
    body = await reader.read()
    writer.close()
    await writer.wait_closed()
    return body.decode()


async def test_a_drain_order_stops_the_instance_it_names(
    start: Start, broker: list[str], nats_bus: NatsBus
) -> None:
    process = await start(*broker)
    await ready(nats_bus)

    async def ordered() -> bool:
        # Repeated, because an event of before the service listens is not for it.
        await nats_bus.event(
            topology.evt("platform", "drain", "example", "one"), pb.DrainOrder(requested_by="t")
        )
        return process.child.returncode is not None

    await eventually(ordered, what="the service has drained")
    assert process.child.returncode == 0


async def test_work_that_hangs_in_the_drain_is_cut_at_the_limit(
    start: Start, broker: list[str], nats_bus: NatsBus
) -> None:
    process = await start(*broker, "--set", "work.mode=hang", "--set", "drain_timeout_s=0.2")
    await ready(nats_bus)
    process.child.send_signal(signal.SIGTERM)
    code, said, errors = await process.ended()
    assert (code, said) == (0, ["built", "drain-second", "tasks-cancelled"])
    assert "service.drain_timeout" in errors


async def test_a_step_of_the_drain_that_fails_does_not_keep_the_others_from_their_turn(
    start: Start, broker: list[str], nats_bus: NatsBus
) -> None:
    process = await start(*broker, "--set", "work.mode=drain-fails")
    await ready(nats_bus)
    process.child.send_signal(signal.SIGTERM)
    code, said, errors = await process.ended()
    assert (code, said[2]) == (0, "drain-first ready=draining")
    assert "service.drain_failed" in errors


async def test_a_service_whose_broker_is_gone_still_drains(
    start: Start, broker: list[str], nats_server: NatsServer
) -> None:
    process = await start(*broker)
    await process.until("built")
    await nats_server.kill()
    process.child.send_signal(signal.SIGTERM)
    code, said, errors = await process.ended()
    assert (code, said[-1]) == (0, "tasks-cancelled")
    assert "Traceback" not in errors


async def test_a_second_signal_ends_the_process_at_once(
    start: Start, broker: list[str], nats_bus: NatsBus
) -> None:
    process = await start(*broker, "--set", "work.mode=hang")
    await ready(nats_bus)
    process.child.send_signal(signal.SIGINT)
    await process.until("drain-second")
    process.child.send_signal(signal.SIGINT)
    assert (await process.ended())[0] == 128 + signal.SIGINT


async def test_the_service_itself_may_ask_for_its_end(start: Start, broker: list[str]) -> None:
    code, said, _ = await (await start(*broker, "--set", "work.mode=stop")).ended()
    assert code == 0
    assert "drain-first ready=draining" in said


async def test_work_that_fails_for_ever_ends_with_its_own_exit_code(start: Start, broker: list[str]) -> None:
    code, said, errors = await (
        await start(*broker, "--set", "work.mode=fail", "--set", "work.slots=1")
    ).ended()
    assert code == 4
    assert "drain-second" in said
    assert "service.gave_up" in errors


async def test_an_unknown_key_ends_with_the_nearest_name_and_no_traceback(start: Start) -> None:
    code, said, errors = await (await start("--set", "work.slosts=3")).ended()
    assert (code, said) == (2, [])
    assert errors == "temper-example: work.slosts: unknown key [from --set] (did you mean 'slots'?)\n"


async def test_show_config_prints_values_with_sources(start: Start) -> None:
    process = await start("--show-config", "--output", "json", TEMPER_EXAMPLE__WORK__SLOTS="5")
    code, said, _ = await process.ended()
    rows = {row["key"]: row for row in json.loads("\n".join(said))}
    assert code == 0
    assert (rows["work.slots"]["value"], rows["work.slots"]["source"]) == (5, "TEMPER_EXAMPLE__WORK__SLOTS")
    assert rows["grpc.host"]["source"] == "default"


async def test_a_broker_that_stays_away_is_waited_for_with_a_message_and_a_bound(
    start: Start, free_port: int
) -> None:
    process = await start(
        *("--set", f"bus.url=nats://u:hush@127.0.0.1:{free_port}", "--set", "bus.connect_timeout_s=1")
    )
    code, _, errors = await process.ended()
    assert code == 3
    assert "service.waiting" in errors
    assert f"127.0.0.1:{free_port} did not answer within 1 s" in errors
    assert "hush" not in errors
    assert "Traceback" not in errors


async def test_a_signal_while_waiting_for_the_broker_ends_quietly(start: Start, free_port: int) -> None:
    process = await start("--set", f"bus.url=nats://127.0.0.1:{free_port}")
    assert process.child.stderr is not None
    async with asyncio.timeout(PATIENCE_S):
        await process.child.stderr.readline()
    process.child.send_signal(signal.SIGINT)
    code, _, errors = await process.ended()
    assert code == 0
    assert "Traceback" not in errors


async def test_a_taken_port_ends_with_its_field(
    start: Start, broker: list[str], nats_server: NatsServer
) -> None:
    process = await start(*broker, "--set", f"grpc.port={nats_server.port}")
    code, _, errors = await process.ended()
    assert code == 3
    assert "grpc.port" in errors


async def test_a_service_drains_when_its_launcher_is_gone(
    start: Start, broker: list[str], nats_bus: NatsBus, tmp_path: Path
) -> None:
    launcher = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-c",
            "import subprocess,sys; subprocess.run(sys.argv[1:])",
            sys.executable,
            str(SERVICE),
        ),
        *(
            "--instance",
            "one",
            "--exit-with-parent",
            "--set",
            f"blobs.url=file://{tmp_path}/objects",
            *broker,
        ),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    await ready(nats_bus)
    launcher.kill()
    await launcher.wait()

    async def gone() -> bool:
        return await presence(nats_bus) is None

    await eventually(gone, what="the orphan has withdrawn its presence")
