"""A whole sandbox against a bare child process: create + exec + destroy, all limits on, over `subprocess.run`.

Both run the same small dynamic program (`/bin/true`), one at a time, interleaved A B A B; the ratio is of the two minima,
which repeat on a noisy machine where medians do not. The sandbox is the namespaces backend as configured by default: mount,
pid, ipc, uts, net and cgroup namespaces, private root, own uid, no capability, filter, memory, cpu and pids limits. No warm pool:
each one is made, used once and destroyed inside the measured time. The launcher forks the next one ahead while the present one works, as the
service does; on two idle cores that overlaps, on busy ones it is inside the measured time too.

The second line is an episode that uses a tool, create + one Python expression + destroy, over starting a Python that evaluates
the same; its detail `cpu_ms` is the processor time of all processes together per episode (where the host counts it by cgroup).

    python -m bench.sandbox_cost --rounds 200
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

from bench.result import report
from temper.runtime.errors import Unavailable
from temper.sandbox.engine.base import Command, Limits, Outcome
from temper.sandbox.engine.launcher import base_python
from temper.sandbox.engine.namespaces import NamespacesBackend

FLOOR, GOOD = 5.0, 2.5
EPISODE_FLOOR, EPISODE_GOOD = 1.0, 0.5
PROGRAM = ("/bin/true",)
EXPRESSION = "37 * 482"
ACCOUNTS = Path("/sys/fs/cgroup/cpuacct")

Run = Callable[[], Awaitable[None]]


class Processor:
    """Processor seconds of this process and all its children, by a control group of their own; None if there is none."""

    def __init__(self) -> None:
        self._group = ACCOUNTS / f"temper-bench-{os.getpid()}"
        try:
            self._group.mkdir()
            (self._group / "tasks").write_text("0")
        except OSError:
            self._group = Path(os.devnull)

    def seconds(self) -> float | None:
        usage = self._group / "cpuacct.usage"
        return int(usage.read_text()) / 1e9 if usage.exists() else None

    def close(self) -> None:
        if self._group.is_dir():
            (ACCOUNTS / "tasks").write_text(str(os.getpid()))
            self._group.rmdir()


async def timed(run: Run) -> float:
    began = time.perf_counter()
    await run()
    return time.perf_counter() - began


async def minima(one: Run, other: Run, rounds: int) -> tuple[float, float]:
    """Shortest times of both, in seconds; the first rounds warm up caches and are not counted."""
    for _ in range(5):
        await one()
        await other()
    pairs = [(await timed(one), await timed(other)) for _ in range(rounds)]
    return min(pair[0] for pair in pairs), min(pair[1] for pair in pairs)


async def measure(backend: NamespacesBackend, rounds: int, load: float, processor: Processor) -> None:
    limits = Limits()

    async def sandboxed() -> None:
        sandbox = await backend.create("bench", limits)
        result = await sandbox.execute(Command(PROGRAM), limits)
        await sandbox.destroy()
        assert (result.outcome, result.exit_code) == (Outcome.OK, 0), result

    async def bare() -> None:
        subprocess.run(PROGRAM, check=True)  # noqa: ASYNC221 - blocking is what is measured

    async def episode() -> None:
        sandbox = await backend.create("bench", limits)
        result = await sandbox.python(EXPRESSION, limits)
        await sandbox.destroy()
        assert result.stdout == b"17834\n", result

    async def fresh_python() -> None:
        command = [base_python().executable, "-S", "-s", "-P", "-B", "-c", f"print({EXPRESSION})"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: ASYNC221 - as above

    whole, child = await minima(sandboxed, bare, rounds)
    times = {"sandbox_ms": round(whole * 1e3, 3), "subprocess_ms": round(child * 1e3, 3)}
    report("sandbox_cost", whole / child, floor=FLOOR, good=GOOD, better="lower", load=load, **times)
    whole, child = await minima(episode, fresh_python, rounds)
    before = processor.seconds()
    for _ in range(rounds):
        await episode()
    after = processor.seconds()
    cpu = None if before is None or after is None else round((after - before) / rounds * 1e3, 3)
    times = {"episode_ms": round(whole * 1e3, 3), "python_ms": round(child * 1e3, 3)}
    report(
        "sandbox_episode",
        whole / child,
        floor=EPISODE_FLOOR,
        good=EPISODE_GOOD,
        better="lower",
        load=load,
        cpu_ms=cpu,
        **times,
    )


async def main(rounds: int) -> int:
    load = os.getloadavg()[0]
    processor = Processor()
    with tempfile.TemporaryDirectory() as directory:
        backend = NamespacesBackend(slots=4, state_dir=Path(directory))
        try:
            await backend.start()
        except Unavailable as error:
            print(error, file=sys.stderr)
            for name, floor, good in (
                ("sandbox_cost", FLOOR, GOOD),
                ("sandbox_episode", EPISODE_FLOOR, EPISODE_GOOD),
            ):
                report(name, None, floor=floor, good=good, better="lower", load=load)
            return 0
        try:
            await measure(backend, rounds, load, processor)
        finally:
            await backend.close()
    processor.close()
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=200, help="interleaved pairs")
    sys.exit(uvloop.run(main(parser.parse_args().rounds)))
