import asyncio
import importlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from temper.client.platform.child import Child
from temper.client.platform.detached import LOG, down, until_ready
from temper.client.platform.keeper import Deaths, Intensity, Keeper
from temper.client.platform.layout import DataDir
from temper.client.platform.lock import DirectoryLock, holder
from temper.client.platform.ready import choose_ports, until_serving
from temper.client.platform.services import (
    SERVICES,
    Service,
    merged,
    require_installed,
    selected,
    settings,
    to_toml,
)
from temper.client.platform.supervisor import Platform
from temper.client.sdk import connect
from temper.runtime.config import load
from temper.runtime.errors import Conflict, Rejected, Unavailable
from temper.runtime.testing import eventually

SLEEP = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
ONLY_QA = ("scheduler", "rollout", "trainer", "sandbox", "telemetry")


def alive(pid: int) -> bool:
    """Whether a process exists and is more than an unburied zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def sleeper(tmp_path: Path) -> Child:
    return await Child.start("sleeper", SLEEP, log=tmp_path / "log", env=os.environ)


# ---------------------------------------------------------------- children
async def test_a_child_writes_to_its_log_and_tells_its_status(tmp_path):
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)"
    child = await Child.start("c", [sys.executable, "-c", code], log=tmp_path / "log", env=os.environ)
    assert await child.wait() == 7
    assert sorted((tmp_path / "log").read_text().split()) == ["err", "out"]


async def test_a_child_that_does_not_drain_is_killed(tmp_path):
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('on', flush=True); time.sleep(600)"
    child = await Child.start("c", [sys.executable, "-c", code], log=tmp_path / "log", env=os.environ)
    await eventually(lambda: (tmp_path / "log").read_text() == "on\n")
    assert not await child.stop(0.1)
    assert not alive(child.pid)


async def test_what_a_child_started_goes_with_it(tmp_path):
    code = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']).pid)"
    child = await Child.start("c", [sys.executable, "-c", code], log=tmp_path / "log", env=os.environ)
    await child.wait()
    grandchild = int((tmp_path / "log").read_text())
    await eventually(lambda: not alive(grandchild))


def test_a_child_dies_with_a_parent_that_is_killed(tmp_path):
    code = (
        "import asyncio, os, pathlib, sys\n"
        "from temper.client.platform.child import Child\n"
        "async def main():\n"
        f"    child = await Child.start('c', {SLEEP!r}, log=pathlib.Path(sys.argv[1]), env=os.environ)\n"
        "    print(child.pid, flush=True)\n"
        "    await child.wait()\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.kill()
    asyncio.run(eventually(lambda: not alive(pid)))


# ---------------------------------------------------------------- keeping them alive
def keeper(tmp_path: Path, start, said: list[str], **limits) -> Keeper:
    limit = Intensity(first_delay_s=0.01, **limits)
    made = Keeper("c", start, changed=said.append, log_tail=lambda: "the end", limit=limit)
    made.settled = True
    return made


async def test_a_dead_process_is_started_again(tmp_path):
    said: list[str] = []
    kept = keeper(tmp_path, lambda: sleeper(tmp_path), said)
    await kept.begin()
    first = kept.pid
    assert first
    os.kill(first, signal.SIGKILL)
    await eventually(lambda: kept.pid not in (None, first))
    assert said == ["c was killed by signal 9 and was restarted"]
    assert await kept.stop(5)


async def test_a_process_that_dies_too_often_is_given_up_with_the_end_of_its_log(tmp_path):
    async def start() -> Child:
        return await Child.start(
            "c", [sys.executable, "-S", "-c", "raise SystemExit(5)"], log=tmp_path / "log", env=os.environ
        )

    kept = keeper(tmp_path, start, [], deaths=2)
    await kept.begin()
    with pytest.raises(Unavailable, match="ended with status 5 and is given up") as caught:
        await kept.failed()
    assert "the end" in str(caught.value.hint)


async def test_a_wrong_configuration_is_not_tried_again(tmp_path):
    async def start() -> Child:
        return await Child.start(
            "c", [sys.executable, "-S", "-c", "raise SystemExit(2)"], log=tmp_path / "log", env=os.environ
        )

    kept = keeper(tmp_path, start, [])
    await kept.begin()
    with pytest.raises(Unavailable):
        await kept.failed()
    assert kept.restarts == 0


def test_pauses_double_up_to_a_bound_and_are_forgotten():
    deaths = Deaths(Intensity(deaths=10, window_s=60, first_delay_s=1, most_delay_s=5))
    assert [deaths.next_delay(0.0) for _ in range(4)] == [1, 2, 4, 5]
    assert deaths.next_delay(61.0) == 1


def test_before_it_was_ready_a_process_has_less_patience():
    deaths = Deaths(Intensity(deaths=10))
    assert [deaths.next_delay(0.0, settled=False) is None for _ in range(3)] == [False, False, True]


# ---------------------------------------------------------------- data directory
def test_a_data_directory_has_one_platform(tmp_path):
    first, second = DirectoryLock(tmp_path / "lock"), DirectoryLock(tmp_path / "lock")
    first.acquire()
    assert holder(tmp_path / "lock") == os.getpid()
    with pytest.raises(Conflict, match=f"is in use by process {os.getpid()}"):
        second.acquire()
    first.release()
    second.acquire()
    second.release()
    assert holder(tmp_path / "lock") is None


def test_a_platform_that_lost_the_directory_to_another_says_so(tmp_path):
    layout = DataDir.at(tmp_path / "data")
    layout.prepare()
    layout.log_file(LOG).touch()
    ended = subprocess.Popen([sys.executable, "-S", "-c", ""])
    ended.wait()
    with pytest.raises(Unavailable, match="the platform did not start"):
        until_ready(ended, layout, print)
    other = DirectoryLock(layout.lock_file)
    other.acquire()
    with pytest.raises(Conflict, match=f"runs in .* already .process {os.getpid()}"):
        until_ready(ended, layout, print)
    other.release()


def test_the_lock_of_a_dead_process_is_taken_over(tmp_path):
    code = (
        "import pathlib, sys, os\n"
        "from temper.client.platform.lock import DirectoryLock\n"
        "DirectoryLock(pathlib.Path(sys.argv[1])).acquire()\n"
        "os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "lock")], check=False)
    assert (tmp_path / "lock").read_text()
    lock = DirectoryLock(tmp_path / "lock")
    lock.acquire()
    lock.release()


def test_secrets_of_a_data_directory_are_its_owner_s_alone(tmp_path):
    layout = DataDir.at(tmp_path / "data")
    layout.prepare()
    layout.write_state({"pid": 1})
    token = layout.token_file.read_text()
    for path, mode in ((layout.root, 0o700), (layout.token_file, 0o600), (layout.state_file, 0o600)):
        assert stat.S_IMODE(path.stat().st_mode) == mode
    layout.prepare()
    assert layout.token_file.read_text() == token


def test_a_file_is_no_data_directory(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(Rejected, match="is a file"):
        DataDir.at(tmp_path / "file").prepare()
    with pytest.raises(Rejected, match="cannot be written"):
        DataDir.at(Path("/proc/temper")).prepare()


def test_down_tells_when_nothing_runs_and_clears_a_stale_state(tmp_path):
    layout = DataDir.at(tmp_path)
    layout.write_state({"pid": 1})
    assert not down(layout, force=False)
    assert not layout.state_file.exists()


# ---------------------------------------------------------------- ports, extras, settings
def test_a_busy_port_is_named(free_port):
    assert choose_ports(("a", "b"), free_port).keys() == {"a", "b"}
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(Conflict, match=rf"{port} \(a\)"):
            choose_ports(("a",), port)


def test_free_ports_differ():
    assert len(set(choose_ports(tuple("abcdefg"), None).values())) == 7


async def test_a_service_that_never_answers_is_named(free_port):
    said: list[str] = []
    with pytest.raises(Unavailable, match=r"not ready after 0.2 s: qa"):
        await until_serving({"qa": f"127.0.0.1:{free_port}"}, timeout_s=0.2, say=said.append)


def test_a_missing_extra_says_what_to_install():
    with pytest.raises(Unavailable, match="no_such_module not installed") as caught:
        require_installed((Service("qa", 0, modules=("no_such_module",)),))
    assert caught.value.hint == "pip install 'temper-rl[qa]'"


def test_an_unknown_service_to_leave_out_is_refused():
    assert {service.name for service in selected(ONLY_QA)} == {"qa"}
    with pytest.raises(Rejected, match="trainr"):
        selected(("trainr",))


@pytest.mark.parametrize("service", [service.name for service in SERVICES])
def test_every_service_accepts_its_settings(tmp_path, service):
    values = settings(service, DataDir.at(tmp_path), broker_url="nats://h:1", broker_token="t", port=1)
    path = tmp_path / "s.toml"
    path.write_text(to_toml(values))
    module = importlib.import_module(f"temper.{service}.config")
    kind = next(each for name, each in vars(module).items() if name.lower() == f"{service}config")
    config = load(service, kind, file=path, environ={})
    assert (config.bus.url, config.grpc.port, config.grpc.host) == ("nats://h:1", 1, "127.0.0.1")
    assert config.grpc.token_file == tmp_path / "token"
    outside = [each for each in config.explain() if str(each.value).startswith("/var/lib")]
    assert outside == []


def test_tables_are_merged_key_by_key():
    assert merged({"a": {"x": 1, "y": 2}, "b": 3}, {"a": {"y": 4}}) == {"a": {"x": 1, "y": 4}, "b": 3}


# ---------------------------------------------------------------- the real thing, small
async def test_a_platform_serves_survives_its_broker_and_leaves_nothing(tmp_path):
    said: list[str] = []
    platform = Platform(DataDir.at(tmp_path), say=said.append, without=ONLY_QA)
    await platform.start()
    state = json.loads(platform.layout.state_file.read_text())
    broker = state["processes"]["nats-server"]
    with pytest.raises(Conflict):
        await Platform(DataDir.at(tmp_path), say=said.append, without=ONLY_QA).start()
    os.kill(broker, signal.SIGKILL)
    await eventually(lambda: "nats-server was killed by signal 9 and was restarted" in said)
    await eventually(
        lambda: json.loads(platform.layout.state_file.read_text())["restarts"]["nats-server"] == 1
    )
    after = json.loads(platform.layout.state_file.read_text())
    assert after["broker"] == state["broker"]
    with connect(data_dir=tmp_path) as client:
        assert "rg/chain_sum" in [each.name for each in client.environments.list(prefix="rg/chain")]
    await platform.stop()
    assert not platform.layout.state_file.exists()
    assert not any(alive(pid) for pid in after["processes"].values())
    assert holder(platform.layout.lock_file) is None


async def test_a_supervisor_that_is_killed_takes_its_children_along(tmp_path):
    command = [sys.executable, "-m", "temper.client.platform", "--data-dir", str(tmp_path)]
    for name in ONLY_QA:
        command += ["--without", name]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.DEVNULL)
    await eventually((tmp_path / "platform.json").exists)
    children = json.loads((tmp_path / "platform.json").read_text())["processes"].values()
    assert all(alive(pid) for pid in children)
    process.kill()
    await process.wait()
    await eventually(lambda: not any(alive(pid) for pid in children))
    assert holder(tmp_path / "lock") is None


@pytest.mark.parametrize("base", [-1, 0, 65530, 70_000])
def test_a_port_that_does_not_exist_is_refused(base):
    with pytest.raises(Rejected, match=f"must be between 1 and 65529, is {base}"):
        choose_ports(tuple("abcdefg"), base)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("foo", "'foo' names no service"),
        ("trainr.logging.level=debug", 'did you mean "trainer"'),
        ("logging.level=debug", "names no service"),
        ("trainer", "is not SERVICE.KEY=VALUE"),
        ("trainer.logging.level", "is not SERVICE.KEY=VALUE"),
        ("trainer.=3", "is not SERVICE.KEY=VALUE"),
    ],
)
def test_an_override_that_no_service_would_read_is_refused(tmp_path, override, words):
    with pytest.raises(Rejected) as caught:
        Platform(DataDir.at(tmp_path), say=print, overrides=["trainer.logging.level=debug", override])
    assert words in str(caught.value)
