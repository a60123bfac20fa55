# ruff: noqa: ASYNC240 - small reads of /proc block nobody here
"""What containers leave on the host: nothing, however the end of their service came."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conformance.sandbox.conftest import LIMITS

from temper.runtime.errors import Unavailable
from temper.runtime.testing import eventually
from temper.sandbox.engine.base import Command
from temper.sandbox.engine.container.backend import ContainerBackend
from temper.sandbox.engine.gvisor import GvisorBackend

WAIT_S = 60.0
PROGRAM = """
import asyncio, sys
from pathlib import Path
from tests.conformance.sandbox.conftest import LIMITS
from tests.conformance.sandbox.test_leftovers_containers import made
from temper.sandbox.engine.base import Command

async def main():
    backend = made(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
    await backend.start()
    sandbox = await backend.create("doomed", LIMITS)
    await sandbox.execute(Command(("/bin/sh", "-c", "setsid sleep 4646 &")), LIMITS)
    print("ready", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def made(name: str, path: Path, url: str) -> ContainerBackend:
    if name == "gvisor":
        return GvisorBackend(slots=2, state_dir=path, first_uid=370_000)
    from temper.sandbox.engine.docker import DockerBackend

    return DockerBackend(slots=2, state_dir=path, url=url, runtime="", first_uid=370_000)


async def started(name: str, path: Path, url: str) -> ContainerBackend:
    backend = made(name, path, url)
    try:
        await backend.start()
    except Unavailable as error:
        pytest.skip(str(error))
    return backend


def killed_in_mid_session(name: str, path: Path, url: str) -> None:
    command = [sys.executable, "-c", PROGRAM, name, str(path), url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]) as child:
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == b"ready\n"
        finally:
            child.send_signal(signal.SIGKILL)


def mounts(path: Path) -> list[str]:
    table = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line.split()[4] for line in table if str(path) in line]


def running(needle: bytes) -> list[str]:
    found: list[str] = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if needle in place.read_bytes():
                found.append(place.parent.name)
        except OSError:
            continue
    return found


async def test_a_killed_service_takes_its_gvisor_sandboxes_along_and_the_next_start_unmounts(
    tmp_path: Path,
) -> None:
    await (await started("gvisor", tmp_path, "")).close()
    killed_in_mid_session("gvisor", tmp_path, "")
    await eventually(lambda: not running(str(tmp_path).encode()), within_s=WAIT_S)
    successor = await started("gvisor", tmp_path, "")
    assert len(list(tmp_path.glob("gvisor-*"))) == 1
    await successor.close()
    assert mounts(tmp_path) == []
    assert list(tmp_path.glob("gvisor-*")) == []
    assert list(tmp_path.glob("owner-*")) == []


async def test_a_killed_service_takes_its_containers_along(tmp_path: Path, docker_url: str) -> None:
    from docker import APIClient

    await (await started("docker", tmp_path, docker_url)).close()
    killed_in_mid_session("docker", tmp_path, docker_url)
    client = APIClient(base_url=docker_url, version="auto")
    place = (tmp_path / "docker-place").read_text()
    try:
        query = {"label": f"temper.sandbox.place={place}"}
        await eventually(lambda: not client.containers(all=True, filters=query), within_s=WAIT_S)
    finally:
        client.close()
    await (await started("docker", tmp_path, docker_url)).close()  # and with it the image of mount points


async def test_the_runtime_of_an_engine_can_be_gvisor(tmp_path: Path, docker_url: str) -> None:
    from temper.sandbox.engine.docker import DockerBackend

    backend = DockerBackend(slots=2, state_dir=tmp_path, url=docker_url, first_uid=370_000)
    try:
        await backend.start()
        if "runsc" not in await backend.runtimes():
            pytest.skip("the engine knows no runsc")
        sandbox = await backend.create("a", LIMITS)
        said = await sandbox.execute(Command(("cat", "/proc/version")), LIMITS)
        assert b"gVisor" in said.stdout or b"4.4.0" in said.stdout
        assert (await sandbox.python("6 * 7", LIMITS)).stdout == b"42\n"
        await sandbox.put_file("/work/a", b"1")
        assert await sandbox.get_file("/work/a", 10) == (b"1", False)
        await sandbox.destroy()
    except Unavailable as error:
        pytest.skip(str(error))
    finally:
        await backend.close()


async def test_a_container_that_dies_in_mid_command_is_told_so(tmp_path: Path) -> None:
    backend = await started("gvisor", tmp_path, "")
    sandbox = await backend.create("a", LIMITS)
    task = asyncio.create_task(sandbox.execute(Command(("sleep", "600")), LIMITS))

    async def sleeps() -> bool:
        return any(each.argv[:1] == ("sleep",) for each in await sandbox.list_processes())

    await eventually(sleeps, within_s=WAIT_S)
    signal.pidfd_send_signal(sandbox._container._pidfd, signal.SIGKILL)  # type: ignore[attr-defined]  # a gVisor container's
    result = await task
    assert result.outcome.value == "sandbox_died"
    assert not sandbox.alive
    await backend.close()
