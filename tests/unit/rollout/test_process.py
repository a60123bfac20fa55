"""The service as a process, on a real broker, killed and drained."""

import asyncio
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from tests.unit.rollout.world import JOB, Publisher, SandboxHost, group

from temper.api.job.v1.platform_pb2 import Presence
from temper.api.rollout.v1.rollout_pb2 import GroupRecord, GroupTable
from temper.runtime import topology
from temper.runtime.blobs import BlobStore
from temper.runtime.bus.nats import NatsBus
from temper.runtime.embedded import NatsServer
from temper.runtime.log.jetstream import JetStreamLog
from temper.runtime.testing import eventually

START_S = 90.0  # two process starts on a machine that does other things too


@dataclass
class Platform:
    server: NatsServer
    bus: NatsBus
    log: JetStreamLog
    blobs: BlobStore
    host: SandboxHost
    directory: Path

    async def spawn(self, *more: str) -> Process:
        sets = {
            "bus.url": self.server.url,
            "bus.token_file": self.server.token_file,
            "blobs.url": f"file://{self.directory}/objects",
            "metrics.port": 0,
            "engine.name": "fake",
            "worker.retry_delay_s": 0,
        }
        arguments = [part for key, value in sets.items() for part in ("--set", f"{key}={value}")]
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "temper.rollout",
            "--exit-with-parent",
            *arguments,
            *more,
            stderr=asyncio.subprocess.DEVNULL,
        )

    async def records(self) -> list[GroupRecord]:
        return [
            each.message(GroupRecord) for each in await self.log.read("trajectories", key=JOB, timeout_s=0.2)
        ]

    async def presences(self) -> list[Presence]:
        bucket = await self.bus.kv("presence")
        entries = [await bucket.get(key) for key in await bucket.keys("rollout")]
        return [Presence.FromString(entry.value) for entry in entries if entry]


@pytest_asyncio.fixture
async def platform(nats_server: NatsServer, nats_bus: NatsBus, tmp_path: Path) -> AsyncIterator[Platform]:
    log = JetStreamLog(nats_bus)
    await log.connect()
    blobs = BlobStore(f"file://{tmp_path}/objects")
    host = SandboxHost(nats_bus)
    await host.serve()
    await Publisher(blobs, nats_bus).publish(0)
    yield Platform(nats_server, nats_bus, log, blobs, host, tmp_path)
    await log.close()


async def test_a_killed_worker_leaves_its_group_to_the_next_and_a_drained_one_leaves_nothing(
    platform: Platform,
):
    platform.host.open.clear()
    await platform.bus.command(topology.cmd("rollout", JOB), group(0), id="g0")
    first = await platform.spawn()
    await eventually(lambda: platform.host.calls, within_s=START_S)
    first.kill()
    await first.wait()
    platform.host.open.set()
    second = await platform.spawn()
    (record,) = await eventually(platform.records, within_s=START_S)
    assert record.attempt == 2
    table = GroupTable.FromString(await platform.blobs.get(record.table))
    assert [len(row.token_ids) for row in table.samples] == [sample.total_tokens for sample in record.samples]

    (present,) = [each for each in await platform.presences() if each.pid == second.pid]
    assert present.status["engine"] == "fake"
    second.send_signal(signal.SIGTERM)
    assert await second.wait() == 0
    assert second.pid not in [each.pid for each in await platform.presences()]


@pytest.mark.parametrize(("flush_tokens", "saves"), [(1, True), (0, False)])
async def test_what_a_killed_worker_had_generated_is_not_generated_again(
    platform: Platform, flush_tokens: int, saves: bool
):
    """Killed with -9 when all samples are there and the group cannot be stored."""

    async def stored() -> list[str]:
        return [ref.key async for ref in platform.blobs.list("partials")]

    async def all_played() -> bool:
        if saves:
            return len(await stored()) == 4
        return bool(platform.host.calls)

    blocked = platform.directory / "objects" / "groups"
    blocked.write_bytes(b"")
    await platform.bus.command(topology.cmd("rollout", JOB), group(0, seed=4), id="g0")
    more = ("--set", f"worker.flush_tokens={flush_tokens}")
    first = await platform.spawn(*more)
    await eventually(all_played, within_s=START_S)
    first.kill()
    await first.wait()
    blocked.unlink()
    second = await platform.spawn(*more)
    (record,) = await eventually(platform.records, within_s=START_S)
    assert record.attempt == 2
    generated = sum(sample.action_tokens for sample in record.samples)
    assert sum(sample.resumed_tokens for sample in record.samples) == (generated if saves else 0)
    table = GroupTable.FromString(await platform.blobs.get(record.table))
    assert {turn.attempt for row in table.samples for turn in row.turns} == ({1} if saves else {2})

    async def nothing() -> bool:
        return not await stored()

    assert await eventually(nothing)
    second.kill()
    await second.wait()


async def test_a_mistake_in_the_settings_is_named_and_costs_no_traceback(platform: Platform):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "temper.rollout", "--set", "engine.slot=3", stderr=asyncio.subprocess.PIPE
    )
    _, said = await process.communicate()
    assert process.returncode == 2
    assert b"engine.slot" in said
    assert b"slots" in said
    assert b"Traceback" not in said
