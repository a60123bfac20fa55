"""Conversions, records, the recorder and the configuration."""

import asyncio
import json
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from temper.api.sandbox.v1 import sandbox_pb2 as pb
from temper.runtime.config import load
from temper.runtime.errors import Rejected, Unavailable
from temper.runtime.testing import MemoryPlatform
from temper.sandbox import doctor
from temper.sandbox.build import make_backend
from temper.sandbox.config import SandboxConfig
from temper.sandbox.convert import MAX_OUTPUT, merge_limits, result_message
from temper.sandbox.engine import records
from temper.sandbox.engine.base import CommandResult, Limits, Outcome
from temper.sandbox.metrics import Metrics
from temper.sandbox.recorder import Recorder


def test_zero_means_the_default_and_a_number_replaces_it() -> None:
    default = Limits(memory_bytes=1 << 30)
    assert merge_limits(default, pb.Limits()) == default
    asked = pb.Limits(memory_bytes=64 << 20, cpu_milli=500, wall_s=2, cpu_s=1, pids=7, output_bytes=1 << 30)
    limits = merge_limits(default, asked)
    assert (limits.memory_bytes, limits.cpus, limits.wall_s, limits.cpu_s, limits.pids) == (
        64 << 20,
        0.5,
        2,
        1,
        7,
    )
    assert limits.output_bytes == MAX_OUTPUT


def test_disk_never_takes_more_than_half_of_the_memory() -> None:
    limits = merge_limits(Limits(memory_bytes=100, disk_bytes=90), pb.Limits())
    assert 2 * limits.disk_bytes <= limits.memory_bytes


@pytest.mark.parametrize("outcome", list(Outcome))
def test_every_outcome_has_a_place_in_the_contract(outcome: Outcome) -> None:
    message = result_message(CommandResult(outcome, truncated=outcome is Outcome.OUTPUT_TRUNCATED), "v1")
    assert message.outcome != pb.OUTCOME_UNSPECIFIED
    assert message.output_truncated == (outcome is Outcome.OUTPUT_TRUNCATED)
    assert not message.HasField("exit_code")


def test_a_result_too_large_for_the_bus_cannot_be() -> None:
    assert 3 * MAX_OUTPUT < 1 << 20


def test_the_file_of_defaults_and_the_model_agree() -> None:
    loaded = load("sandbox", SandboxConfig, environ={})
    assert loaded.model_dump() == SandboxConfig().model_dump()
    assert loaded.limits.build().memory_bytes == loaded.limits.memory_bytes


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("slots=0", "slots"),
        ("backend=dokcer", "backend"),
        ("limits.pids=1", "limits.pids"),
        ("slotz=3", "slots"),
    ],
)
def test_a_bad_setting_is_refused_by_name(setting: str, says: str) -> None:
    with pytest.raises(Rejected, match=says):
        load("sandbox", SandboxConfig, sets=[setting], environ={})


@pytest.mark.parametrize("name", ["namespaces", "process", "fake"])
def test_each_backend_can_be_configured(name: str, tmp_path: Path) -> None:
    config = load("sandbox", SandboxConfig, sets=[f"backend={name}", f"state_dir={tmp_path}"], environ={})
    assert type(make_backend(config)).__name__.lower().startswith(name)


@pytest.mark.parametrize("name", ["process", "fake"])
def test_the_doctor_tells_what_works_here(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main(["--set", f"backend={name}"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["backend"], told["works"], told["cgroup_mode"]) == (name, True, "none")


def test_the_doctor_says_why_nothing_works(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("temper.sandbox.engine.guest.syscalls.supported", lambda: False)
    assert doctor.main([]) == 3
    told = json.loads(capsys.readouterr().out)
    assert not told["works"]
    assert "system call table" in told["reason"]
    assert doctor.main(["--set", "slotz=1"]) == 2


def test_what_a_dead_owner_left_is_removed(tmp_path: Path) -> None:
    left = tmp_path / "work-1-1"
    (left / "0").mkdir(parents=True)
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.mkdir()
    record = {"pid": 1, "started": 1, "groups": [], "directories": [str(left), str(outside)]}
    (tmp_path / "owner-1-1.json").write_text(json.dumps(record))
    (tmp_path / "owner-2-2.json").write_text("half a rec")
    assert records.reclaim(tmp_path) == records.Reclaimed(owners=1, groups=0, directories=1)
    assert not left.exists()
    assert outside.exists()
    assert records.reclaim(tmp_path) == records.Reclaimed()


async def test_records_reach_the_log_once_and_in_order(memory_platform: MemoryPlatform) -> None:
    recorder = Recorder(memory_platform.log, memory_platform.clock, Metrics(CollectorRegistry()))
    running = asyncio.create_task(recorder.run())
    for index in range(3):
        recorder.put(pb.SessionRecord(session_id=f"s{index}", job_id="j", host="h"))
    recorder.put(pb.SessionRecord(session_id="bare", host="h"))
    await memory_platform.clock.settle()
    read = await memory_platform.log.read("sandbox", key="j", timeout_s=0)
    assert [each.message(pb.SessionRecord).session_id for each in read] == ["s0", "s1", "s2"]
    running.cancel()


async def test_a_log_that_is_away_delays_records_and_loses_none(
    memory_platform: MemoryPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(memory_platform.log, memory_platform.clock, Metrics(CollectorRegistry()))
    append = memory_platform.log.append

    async def away(*_: object, **__: object) -> object:
        raise Unavailable("away")

    monkeypatch.setattr(memory_platform.log, "append", away)
    running = asyncio.create_task(recorder.run())
    recorder.put(pb.SessionRecord(session_id="s", job_id="j"))
    await memory_platform.clock.advance(3.0)
    monkeypatch.setattr(memory_platform.log, "append", append)
    await memory_platform.clock.advance(2.0)
    assert len(await memory_platform.log.read("sandbox", key="j", timeout_s=0)) == 1
    running.cancel()
