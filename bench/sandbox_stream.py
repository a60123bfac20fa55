"""Output that streams out of a sandbox while it is written, against the same program behind a plain pipe of `subprocess`.

Bytes per second through the sink of `execute` over bytes per second read from `Popen.stdout`, interleaved, ratio of maxima. The
host's resident memory before and after is in the line: it stays flat, whatever is written.

    python -m bench.sandbox_stream --mib 1024
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from bench.result import report
from temper.runtime.errors import Unavailable
from temper.sandbox.engine.base import Command, Limits, Stream
from temper.sandbox.engine.namespaces import NamespacesBackend

FLOOR, GOOD = 0.5, 0.8
PIECE = 1 << 16


def program(mib: int) -> tuple[str, ...]:
    return ("/usr/bin/head", "-c", str(mib << 20), "/dev/zero")


async def streamed(backend: NamespacesBackend, mib: int) -> float:
    """Bytes per second out of a sandbox."""
    limits = Limits(wall_s=120)
    sandbox = await backend.create("bench", limits)
    size = 0

    async def sink(_: Stream, data: bytes) -> None:
        nonlocal size
        size += len(data)

    began = time.perf_counter()
    result = await sandbox.execute(Command(program(mib)), limits, sink)
    took = time.perf_counter() - began
    await sandbox.destroy()
    assert (size, result.exit_code) == (mib << 20, 0), (size, result.outcome)
    return size / took


def piped(mib: int) -> float:
    """Bytes per second out of a child's pipe."""
    began = time.perf_counter()
    size = 0
    with subprocess.Popen(program(mib), stdout=subprocess.PIPE, bufsize=0) as child:
        assert child.stdout is not None
        while data := child.stdout.read(PIECE):
            size += len(data)
    return size / (time.perf_counter() - began)


async def main(mib: int, rounds: int) -> int:
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as directory:
        backend = NamespacesBackend(slots=2, state_dir=Path(directory))
        try:
            await backend.start()
        except Unavailable as error:
            print(error, file=sys.stderr)
            report("sandbox_stream", None, floor=FLOOR, good=GOOD, load=load)
            return 0
        try:
            await streamed(backend, 16)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            pairs = [(await streamed(backend, mib), piped(mib)) for _ in range(rounds)]
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        finally:
            await backend.close()
    ours, theirs = max(pair[0] for pair in pairs), max(pair[1] for pair in pairs)
    rates: dict[str, object] = {
        "sandbox_mib_s": round(ours / (1 << 20)),
        "pipe_mib_s": round(theirs / (1 << 20)),
        "host_grew_kib": grown,
    }
    report("sandbox_stream", ours / theirs, floor=FLOOR, good=GOOD, better="higher", load=load, **rates)
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mib", type=int, default=512, help="bytes of one run, in MiB")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved pairs")
    chosen = parser.parse_args()
    sys.exit(uvloop.run(main(chosen.mib, chosen.rounds)))
