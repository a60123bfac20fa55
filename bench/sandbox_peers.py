"""The namespaces backend against what others start: create + run one small program + destroy, over the same of each peer.

Interleaved A B A B, the ratio of the two minima. Peers that this machine lacks are left out with a line that says so:

    bwrap        `bwrap --unshare-all` with the host's root, read-only, and no limits
    docker run   `docker run --rm --network=none` of an image of one static program; an engine is started for it if need be
    runsc        `runsc do` without a network
    SWE-ReX      its local runtime: create a session, run a command, close it; and a command in a session that stands.
                 TEMPER_BENCH_SWEREX names a Python that has `swe-rex` installed

The last lines are our own other backends over `subprocess.run`: what another wall costs. `sandbox_cost` has the namespaces backend.

    python -m bench.sandbox_peers --rounds 30
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import uvloop
from tests.conformance.sandbox.engines import NoEngine, docker_engine

from bench.result import report
from bench.sandbox_cost import minima
from temper.runtime.errors import TemperError
from temper.sandbox.engine.base import Backend, Command, Limits, Outcome, SessionSpec
from temper.sandbox.engine.bubblewrap import BubblewrapBackend
from temper.sandbox.engine.docker import DockerBackend
from temper.sandbox.engine.gvisor import GvisorBackend
from temper.sandbox.engine.namespaces import NamespacesBackend

PROGRAM = ("/bin/true",)
LIMITS = Limits()
BARS = {"bwrap": (1.0, 0.5), "docker_run": (0.05, 0.02), "runsc": (None, None)}
SESSION_BARS = (0.1, 0.03)
SWEREX = os.environ.get("TEMPER_BENCH_SWEREX", "")
WORKER = """
import asyncio, sys, time
from swerex.runtime.abstract import BashAction, CloseBashSessionRequest, CreateBashSessionRequest
from swerex.runtime.local import LocalRuntime

async def whole(runtime, n):
    await runtime.create_session(CreateBashSessionRequest(session=f"s{n}"))
    await runtime.run_in_session(BashAction(command="true", session=f"s{n}"))
    await runtime.close_session(CloseBashSessionRequest(session=f"s{n}"))

async def main():
    runtime = LocalRuntime()
    await runtime.create_session(CreateBashSessionRequest(session="kept"))
    print("ready", flush=True)
    for n, line in enumerate(sys.stdin):
        if line.strip() == "whole":
            await whole(runtime, n)
        else:
            await runtime.run_in_session(BashAction(command="true", session="kept"))
        print("done", flush=True)
    await runtime.close()

asyncio.run(main())
"""

Run = Callable[[], Awaitable[None]]


def whole(backend: Backend) -> Run:
    """Create, run, destroy."""

    async def run() -> None:
        sandbox = await backend.create("bench", LIMITS)
        result = await sandbox.execute(Command(PROGRAM), LIMITS)
        await sandbox.destroy()
        assert (result.outcome, result.exit_code) == (Outcome.OK, 0), result

    return run


def command(words: list[str]) -> Run:
    async def run() -> None:
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)  # noqa: ASYNC221 - blocking is what is measured

    return run


@contextlib.contextmanager
def peers() -> Iterator[dict[str, Run | str]]:
    """Peers by name: how to run one, or why there is none."""
    with contextlib.ExitStack() as stack:
        found: dict[str, Run | str] = {"bwrap": "bwrap is not installed", "runsc": "runsc is not installed"}
        if bwrap := shutil.which("bwrap"):
            view = ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
            found["bwrap"] = command([bwrap, "--unshare-all", "--die-with-parent", *view, *PROGRAM])
        if runsc := shutil.which("runsc"):
            found["runsc"] = command([runsc, "--network=none", "--ignore-cgroups", "do", *PROGRAM])
        try:
            url = stack.enter_context(docker_engine())
        except NoEngine as reason:
            found["docker_run"] = str(reason)
        else:
            found["docker_run"] = _docker(url)
        yield found


def _docker(url: str) -> Run | str:
    busybox, docker = shutil.which("busybox"), shutil.which("docker")
    if busybox is None or docker is None:
        return "docker's command line or busybox-static is not installed"
    with tempfile.TemporaryDirectory() as home:
        (Path(home) / "bin").mkdir()
        shutil.copy(busybox, Path(home) / "bin" / "true")
        packed = subprocess.run(["tar", "-C", home, "-c", "."], check=True, capture_output=True).stdout
    subprocess.run(
        [docker, "-H", url, "import", "-", "temper-bench"], input=packed, check=True, capture_output=True
    )
    return command([docker, "-H", url, "run", "--rm", "--network=none", "temper-bench", *PROGRAM])


@contextlib.asynccontextmanager
async def swerex() -> AsyncIterator[Callable[[str], Run]]:
    """A process with SWE-ReX's local runtime, told what to do line by line."""
    process = await asyncio.create_subprocess_exec(
        SWEREX,
        "-c",
        WORKER,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    reader, writer = process.stdout, process.stdin
    assert reader is not None
    assert writer is not None
    await _expect(reader, b"ready\n")

    def runner(what: str) -> Run:
        async def run() -> None:
            writer.write(f"{what}\n".encode())
            await _expect(reader, b"done\n")

        return run

    try:
        yield runner
    finally:
        writer.close()
        await process.wait()


async def _expect(reader: asyncio.StreamReader, word: bytes) -> None:
    while (line := await reader.readline()) != word:
        assert line, "SWE-ReX ended"


async def compare(name: str, ours: Run, peer: Run, rounds: int, load: float) -> None:
    floor, good = BARS.get(name, (None, None))
    one, other = await minima(ours, peer, rounds)
    times = {"ours_ms": round(one * 1e3, 3), "peer_ms": round(other * 1e3, 3)}
    report(f"sandbox_over_{name}", one / other, floor=floor, good=good, better="lower", load=load, **times)


async def measure(backend: Backend, rounds: int, load: float) -> None:
    ours = whole(backend)
    with peers() as found:
        for name, peer in found.items():
            if isinstance(peer, str):
                _absent(f"sandbox_over_{name}", peer, load)
            else:
                await compare(name, ours, peer, rounds, load)
    if SWEREX:
        await _against_swerex(backend, ours, max(5, rounds // 4), load)
    else:
        _absent("sandbox_over_swerex", "TEMPER_BENCH_SWEREX names no Python with swe-rex", load)


async def measure_others(home: Path, rounds: int, load: float) -> None:
    """Our other backends, one after another: a process has the control groups of one backend."""
    others: dict[str, Backend] = {
        "bubblewrap": BubblewrapBackend(slots=2, state_dir=home / "bubblewrap", first_uid=220_000),
        "gvisor": GvisorBackend(slots=2, state_dir=home / "gvisor", first_uid=230_000),
    }
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(NoEngine):
            url = stack.enter_context(docker_engine())
            others["docker"] = DockerBackend(slots=2, state_dir=home / "docker", url=url, runtime="")
        for name, other in others.items():
            await _measure_other(name, other, rounds, load)


async def _measure_other(name: str, other: Backend, rounds: int, load: float) -> None:
    name = f"sandbox_{name}_over_subprocess"
    try:
        await other.start()
    except TemperError as error:
        _absent(name, error.message, load)
        return
    one, bare = await minima(whole(other), command(list(PROGRAM)), rounds)
    await other.close()
    times = {"ms": round(one * 1e3, 3), "subprocess_ms": round(bare * 1e3, 3)}
    report(name, one / bare, floor=None, good=None, better="lower", load=load, **times)


async def _against_swerex(backend: Backend, ours: Run, rounds: int, load: float) -> None:
    sandbox = await backend.create("session", LIMITS)
    session = await sandbox.open_session(SessionSpec())

    async def in_session() -> None:
        assert (await session.run("true", LIMITS)).exit_code == 0

    async with swerex() as runner:
        await compare("swerex", ours, runner("whole"), rounds, load)
        one, other = await minima(in_session, runner("command"), rounds)
    await sandbox.destroy()
    floor, good = SESSION_BARS
    times = {"ours_ms": round(one * 1e3, 3), "peer_ms": round(other * 1e3, 3)}
    report("session_over_swerex", one / other, floor=floor, good=good, better="lower", load=load, **times)


def _absent(name: str, reason: str, load: float) -> None:
    print(f"{name}: {reason}", file=sys.stderr)
    report(name, None, floor=None, good=None, better="lower", load=load)


async def main(rounds: int) -> int:
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as directory:
        backend = NamespacesBackend(slots=4, state_dir=Path(directory) / "own")
        try:
            await backend.start()
        except TemperError as error:
            _absent("sandbox_peers", error.message, load)
            return 0
        try:
            await measure(backend, rounds, load)
        finally:
            await backend.close()
        await measure_others(Path(directory), max(5, rounds // 2), load)
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=30, help="interleaved pairs")
    sys.exit(uvloop.run(main(parser.parse_args().rounds)))
