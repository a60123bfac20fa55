"""What an episode costs the sandbox service in processor time, over a bare Python that computes the same.

The service runs as it does under `temper run`: a process of its own on a broker, the namespaces backend, the `calc` environment that ships.
An episode is one Step (a Python expression in a sandbox of its own, all limits on) and one Finish (sandbox destroyed, answer verified by
the environment's worker); so many are in flight as a training step has. Counted is every process of the service: itself, the launcher,
the sandboxes, the worker; not the broker, nor the asker. The peer starts a Python, evaluates the expression and ends.

    sandbox_episode_cpu   processor seconds of an episode with a tool / those of the bare Python
    sandbox_verdict_cpu   the same for an episode without a tool: Finish alone

Processor time, not wall time: it says the same beside other work, only larger where caches are fought for. Blocks of both alternate,
the ratio is that of the sums. Needs cgroup v1's cpuacct.

    python -m bench.sandbox_episode --episodes 400
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvloop

import temper.qa
from bench.result import report
from temper.api.common.v1 import common_pb2
from temper.api.sandbox.v1 import sandbox_pb2
from temper.client.bundle import pack
from temper.runtime import topology
from temper.runtime.blobs import BlobStore
from temper.runtime.bus.nats import Credentials, NatsBus
from temper.runtime.embedded import NatsServer
from temper.runtime.errors import Exhausted, Unavailable
from temper.sandbox.engine.launcher import base_python

FLOORS = {"sandbox_episode_cpu": (1.0, 0.5), "sandbox_verdict_cpu": (0.2, 0.1)}
ACCOUNTS = Path("/sys/fs/cgroup/cpuacct")
PARAMS = {"low": 10, "high": 999, "forms": ["n*n"], "suffix": "="}
EXPRESSION = "37 * 482"
IN_FLIGHT, BLOCKS, PEERS = 32, 4, 10
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
START_S = 60.0


class Accounts:
    """Processor seconds of the service's processes, by a control group of their own and by /proc."""

    def __init__(self) -> None:
        self._group = ACCOUNTS / f"temper-bench-{os.getpid()}"
        self._group.mkdir()

    def join(self) -> None:
        """Called in the child before it becomes the service."""
        (self._group / "tasks").write_text("0")

    def seconds(self) -> float:
        return int((self._group / "cpuacct.usage").read_text()) / 1e9

    def close(self) -> None:
        self._group.rmdir()


def parts(root: int) -> dict[str, float]:
    """Seconds of the parts that live on, by name."""
    launchers = [pid for pid in children(root) if "launcher" in words(pid)]
    inner = [pid for launcher in launchers for pid in children(launcher)]
    workers = [pid for pid in children(root) if "envworker" in words(pid)]
    return {
        "service": own_seconds([root]),
        "launcher": own_seconds(launchers + inner),
        "worker": own_seconds(workers),
    }


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def words(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


def own_seconds(pids: list[int]) -> float:
    rows = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(row[11]) + int(row[12]) for row in rows) * TICK_S


async def service(server: NatsServer, home: Path, accounts: Accounts) -> asyncio.subprocess.Process:
    settings = {
        "bus.url": server.url,
        "bus.token_file": server.token_file,
        "blobs.url": f"file://{home / 'objects'}",
        "state_dir": home / "sandbox",
        "metrics.port": 0,
        "first_uid": 340_000,
        "logging.level": "error",
    }
    arguments = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "temper.sandbox",
        *arguments,
        preexec_fn=accounts.join,
    )


class Player:
    """Plays episodes of `calc` against the service."""

    def __init__(self, bus: NatsBus, env: common_pb2.EnvRef) -> None:
        self._bus = bus
        self._env = env
        self._played = 0

    async def ask(self, host: str, method: str, request: object) -> object:
        """Asked again while the host is full, as the rollout service does."""
        reply = getattr(sandbox_pb2, f"{method}Response")
        while True:
            try:
                return await self._bus.request(
                    topology.rpc("sandbox", host, method),
                    request,  # pyright: ignore[reportArgumentType]  # any message of the contract
                    reply,
                    timeout_s=START_S,
                )
            except Exhausted:
                await asyncio.sleep(0.05)

    async def ready(self) -> None:
        async with asyncio.timeout(START_S):
            while True:
                try:
                    await self.ask("any", "GetCapabilities", sandbox_pb2.GetCapabilitiesRequest())
                except Unavailable:
                    await asyncio.sleep(0.05)
                else:
                    return

    async def episode(self, *, tool: bool) -> None:
        """A session from its first call to its verdict."""
        self._played += 1
        name, host = f"bench-{self._played}", "any"
        where: dict[str, Any] = {
            "session_id": name,
            "env": self._env,
            "split": "train",
            "task_index": self._played,
        }
        if tool:
            call = sandbox_pb2.ToolCall(name="python", arguments_json=json.dumps({"code": EXPRESSION}))
            step = sandbox_pb2.StepRequest(command_id=f"{name}#0", call=call, lease_s=60, **where)
            seen = await self.ask(host, "Step", step)
            assert isinstance(seen, sandbox_pb2.StepResponse)
            assert seen.observation == "17834", seen
            host = seen.host
        verdict = await self.ask(host, "Finish", sandbox_pb2.FinishRequest(answer="17834", **where))
        assert isinstance(verdict, sandbox_pb2.FinishResponse)
        assert not verdict.infra_error, verdict

    async def many(self, count: int, *, tool: bool) -> None:
        """So many at once as a training step has in flight."""
        places = asyncio.Semaphore(IN_FLIGHT)

        async def one() -> None:
            async with places:
                await self.episode(tool=tool)

        await asyncio.gather(*(one() for _ in range(count)))


def bare() -> float:
    """Processor seconds of one Python that computes the same."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [base_python().executable, "-S", "-s", "-P", "-B", "-c", f"print({EXPRESSION})"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


Play = Callable[[int], Awaitable[None]]


async def compare(name: str, play: Play, count: int, pid: int, accounts: Accounts, load: float) -> None:
    await play(IN_FLIGHT * 2)
    ours = peer = 0.0
    first = parts(pid)
    for _ in range(BLOCKS):
        before = accounts.seconds()
        await play(count // BLOCKS)
        ours += accounts.seconds() - before
        peer += sum(bare() for _ in range(PEERS)) / PEERS
    count, last = count // BLOCKS * BLOCKS, parts(pid)
    details = {f"{part}_ms": round((last[part] - first[part]) / count * 1e3, 3) for part in last}
    details["sandbox_ms"] = round(ours / count * 1e3 - sum(details.values()), 3)
    ratio = (ours / count) / (peer / BLOCKS)
    floor, good = FLOORS[name]
    details |= {"cpu_ms": round(ours / count * 1e3, 3), "python_ms": round(peer / BLOCKS * 1e3, 3)}
    report(name, ratio, floor=floor, good=good, better="lower", load=load, **details)


async def measure(home: Path, episodes: int, load: float) -> None:
    server, accounts = NatsServer(home / "nats"), Accounts()
    await server.start()
    bus = NatsBus(server.url, name="bench/1", credentials=Credentials(token=server.token))
    await bus.connect()
    await topology.apply(bus)
    blobs = BlobStore(f"file://{home / 'objects'}")
    content = pack(Path(temper.qa.__path__[0]) / "assets" / "calc")
    env = common_pb2.EnvRef(
        name="calc",
        version="1.0.0",
        digest="c" * 64,
        bundle=await blobs.put("bundles/calc.tar", content),
        params_json=json.dumps(PARAMS),
    )
    process = await service(server, home, accounts)
    player = Player(bus, env)
    try:
        await player.ready()
        for name, tool in (("sandbox_episode_cpu", True), ("sandbox_verdict_cpu", False)):

            async def play(count: int, tool: bool = tool) -> None:
                await player.many(count, tool=tool)

            await compare(name, play, episodes, process.pid, accounts, load)
    finally:
        process.terminate()
        await process.wait()
        await bus.close()
        await server.stop()
    accounts.close()


async def main(episodes: int) -> int:
    load = os.getloadavg()[0]
    if not os.access(ACCOUNTS, os.W_OK):
        print(f"{ACCOUNTS} is not there or not writable", file=sys.stderr)
        for name, (floor, good) in FLOORS.items():
            report(name, None, floor=floor, good=good, better="lower", load=load)
        return 0
    with tempfile.TemporaryDirectory() as directory:
        await measure(Path(directory), episodes, load)
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--episodes", type=int, default=400, help="episodes of each kind")
    sys.exit(uvloop.run(main(parser.parse_args().episodes)))
