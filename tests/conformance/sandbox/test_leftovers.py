# ruff: noqa: ASYNC240 - small reads of /proc and of a record block nobody here
"""What stays on the host afterwards: nothing, however the end came."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.sandbox.conftest import LIMITS, MAKERS

from temper.runtime.errors import Unavailable
from temper.runtime.testing import eventually
from temper.sandbox.engine import cgroups, records
from temper.sandbox.engine.base import Command

PROGRAM = """
import asyncio, sys
from pathlib import Path
from typing import Any
from tests.conformance.sandbox.conftest import LIMITS, MAKERS
from temper.sandbox.engine.base import Command

async def main():
    backend = MAKERS[sys.argv[1]](Path(sys.argv[2]))
    await backend.start()
    sandbox = await backend.create("doomed", LIMITS)
    await sandbox.execute(Command(("/bin/sh", "-c", "setsid sleep 4343 & sleep 4343 &")), LIMITS)
    await sandbox.python("import subprocess; p = subprocess.Popen(['sleep', '4343'])", LIMITS)
    print("ready", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def commands(needle: str) -> list[str]:
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if needle in line and str(os.getpid()) != path.parent.name:
            found.append(line)
    return found


def groups(state_dir: Path) -> list[Path]:
    """Groups made by the owner of this directory, as its record names them."""
    return [
        Path(line)
        for record in state_dir.glob("owner-*.json")
        for line in json.loads(record.read_text())["groups"]
    ]


def killed_in_mid_session(name: str, state_dir: Path) -> list[Path]:
    """Kill a service process with a live sandbox; returns the groups that it had made."""
    command = [sys.executable, "-c", PROGRAM, name, str(state_dir)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]) as child:
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == b"ready\n"
            return groups(state_dir)
        finally:
            child.send_signal(signal.SIGKILL)


async def started(name: str, state_dir: Path) -> Any:
    backend = MAKERS[name](state_dir)
    try:
        await backend.start()
    except Unavailable as error:
        pytest.skip(str(error))
    return backend


@pytest.mark.parametrize("name", ["namespaces", "bubblewrap", "process"])
async def test_an_orderly_end_leaves_nothing(name: str, tmp_path: Path) -> None:
    mounts = Path("/proc/self/mountinfo").read_text()
    backend = await started(name, tmp_path)
    made = groups(tmp_path)
    sandbox = await backend.create("a", LIMITS)
    await sandbox.execute(Command(("/bin/sh", "-c", "setsid sleep 4242 &")), LIMITS)
    await sandbox.python("1", LIMITS)
    await backend.close()
    assert commands("sleep 4242") == []
    assert [path for path in made if path.exists()] == []
    assert Path("/proc/self/mountinfo").read_text() == mounts
    assert list(tmp_path.glob("owner-*")) == []
    assert list(tmp_path.glob("work-*")) == []


@pytest.mark.parametrize("name", ["namespaces", "bubblewrap", "process"])
async def test_after_a_kill_no_process_lives_and_the_next_start_reclaims_the_rest(
    name: str, tmp_path: Path
) -> None:
    await (await started(name, tmp_path)).close()  # skips where the backend cannot run
    made = killed_in_mid_session(name, tmp_path)
    await eventually(
        lambda: not commands("sleep 4343")
    )  # everything ends with the launcher, that with the service
    successor = await started(name, tmp_path)
    assert [path for path in made if path.exists()] == []
    assert len(list(tmp_path.glob("owner-*"))) == 1
    assert len(list(tmp_path.glob("work-*"))) == (1 if name == "process" else 0)
    await successor.close()


async def test_a_killed_launcher_takes_its_sandboxes_and_the_next_creation_starts_another(
    tmp_path: Path,
) -> None:
    backend = await started("namespaces", tmp_path)
    sandbox = await backend.create("a", LIMITS)
    await sandbox.execute(Command(("/bin/sh", "-c", "sleep 4545 &")), LIMITS)
    os.kill(backend._launcher.pid, signal.SIGKILL)
    await eventually(lambda: not sandbox.alive)
    assert commands("sleep 4545") == []
    await sandbox.destroy()
    await eventually(lambda: not backend._launcher.alive)
    again = await backend.create("b", LIMITS)
    assert (await again.python("1", LIMITS)).stdout == b"1\n"
    await backend.close()


def test_a_living_owners_groups_are_not_touched(tmp_path: Path) -> None:
    path = records.write(tmp_path, (), (tmp_path / "work",))
    (tmp_path / "work").mkdir()
    assert records.reclaim(tmp_path) == records.Reclaimed()
    assert path.exists()
    assert (tmp_path / "work").is_dir()


def test_only_directories_of_ours_are_removed(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    assert cgroups.remove_trees([tmp_path / "precious"]) == 0
    assert (tmp_path / "precious").is_dir()
