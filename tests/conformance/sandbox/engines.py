"""A Docker engine for the tests: started for them if this machine can, and gone after them."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

START_S = 30.0
STOP_S = 30.0


class NoEngine(Exception):  # noqa: N818 - a reason, caught where it is raised
    """Why there is none."""


@contextlib.contextmanager
def docker_engine() -> Iterator[str]:
    """The URL of an engine: TEMPER_TEST_DOCKER if it is set, else one of our own in a directory of its own."""
    given = os.environ.get("TEMPER_TEST_DOCKER")
    if given:
        yield given
        return
    if shutil.which("dockerd") is None:
        raise NoEngine("dockerd is not installed (make apt), and TEMPER_TEST_DOCKER names no engine")
    if os.geteuid() != 0:
        raise NoEngine("dockerd needs root here")
    home = Path(tempfile.mkdtemp(prefix="temper-docker-"))
    try:
        with _daemon(home) as url:
            yield url
    finally:
        _unmount(home)
        shutil.rmtree(home, ignore_errors=True)


@contextlib.contextmanager
def _daemon(home: Path) -> Iterator[str]:
    socket = home / "docker.sock"
    command = [
        *("dockerd", "--iptables=false", "--ip6tables=false", "--bridge=none", "--host", f"unix://{socket}"),
        *(
            "--data-root",
            str(home / "data"),
            "--exec-root",
            str(home / "exec"),
            "--pidfile",
            str(home / "pid"),
        ),
        *_gvisor(home),
    ]
    with (home / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as daemon:
        try:
            until = time.monotonic() + START_S
            while not _answers(socket):
                if daemon.poll() is not None or time.monotonic() > until:
                    raise NoEngine(f"dockerd does not start here: {_last_line(home / 'log')}")
                time.sleep(0.05)
            yield f"unix://{socket}"
        finally:
            daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(STOP_S)
            except subprocess.TimeoutExpired:
                daemon.kill()
            _sweep(home)


def _gvisor(home: Path) -> list[str]:
    """The runtime runsc, without a network stack of its own: the engine gives these containers none."""
    found = shutil.which("runsc")
    if found is None:
        return []
    wrapper = home / "runsc"
    wrapper.write_text(f'#!/bin/sh\nexec {found} --network=none --ignore-cgroups "$@"\n')
    wrapper.chmod(0o755)
    return [f"--add-runtime=runsc={wrapper}"]


def _sweep(home: Path) -> None:
    """Processes of the engine that outlive it: what serves a container does."""
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(home).encode() in (place / "cmdline").read_bytes():
                os.kill(int(place.name), signal.SIGKILL)


def _answers(socket: Path) -> bool:
    from docker import APIClient
    from docker.errors import DockerException

    if not socket.exists():
        return False
    try:
        client = APIClient(base_url=f"unix://{socket}", version="auto", timeout=5)
    except DockerException:
        return False
    client.close()
    return True


def _last_line(log: Path) -> str:
    return (log.read_text(errors="replace").strip().splitlines() or ["no word"])[-1][-300:]


def _unmount(home: Path) -> None:
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for mount in sorted((each for each in mounts if each.startswith(str(home))), reverse=True):
        subprocess.run(["umount", "-l", mount], check=False)
