"""Starting over: a reset against copying a tree anew, and forks of a snapshot against sandboxes made and filled one by one.

`sandbox_reset` is one reset of a used sandbox (files written, a background process left) over `shutil.copytree` of 500 small
files, which is what going back costs where there is no file system to discard. `sandbox_fork` is one fork of 8 from a snapshot
with those 500 files over making 8 sandboxes and unpacking the same files into each. Both interleaved, ratios of minima.

    python -m bench.sandbox_reset --rounds 40
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import uvloop

from bench.result import report
from bench.sandbox_cost import timed
from temper.runtime.errors import Unavailable
from temper.sandbox.engine.base import Command, Limits
from temper.sandbox.engine.namespaces import NamespacesBackend

FILES, FORKS = 500, 8
FLOORS = {"sandbox_reset": (0.05, 0.01), "sandbox_fork": (0.8, 0.4)}
MESS = "echo 1 > a; mkdir d; echo 2 > d/b; sleep 600 &"


def tree(directory: Path) -> bytes:
    """500 files of 2 KiB in 10 directories, and the same as an archive."""
    for index in range(FILES):
        path = directory / f"d{index % 10}" / f"f{index}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 2048)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(directory, ".")
    return buffer.getvalue()


async def once(content: bytes) -> AsyncIterator[bytes]:
    yield content


async def resets(backend: NamespacesBackend, directory: Path, rounds: int) -> tuple[float, float]:
    limits = Limits()
    sandbox = await backend.create("bench", limits)

    async def reset() -> None:
        await sandbox.reset()

    async def copy() -> None:
        shutil.copytree(directory / "tree", directory / "copy")

    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(rounds):
        await sandbox.execute(Command(("/bin/sh", "-c", MESS)), limits)
        ours.append(await timed(reset))
        theirs.append(await timed(copy))
        shutil.rmtree(directory / "copy")
    await sandbox.destroy()
    return min(ours), min(theirs)


async def forks(backend: NamespacesBackend, archive: bytes, rounds: int) -> tuple[float, float]:
    limits = Limits()
    origin = await backend.create("origin", limits)
    await origin.put_tree("/work", once(archive))
    taken = await origin.snapshot()

    async def fork() -> None:
        made = [each.sandbox for each in await backend.fork(taken, [f"f{n}" for n in range(FORKS)], limits)]
        live.extend(each for each in made if each is not None)

    async def cold() -> None:
        for index in range(FORKS):
            sandbox = await backend.create(f"c{index}", limits)
            live.append(sandbox)
            await sandbox.put_tree("/work", once(archive))

    times: dict[str, list[float]] = {"fork": [], "cold": []}
    for _ in range(rounds):
        for name, run in (("fork", fork), ("cold", cold)):
            live: list[object] = []
            times[name].append(await timed(run))
            assert len(live) == FORKS, f"{name}: {len(live)} of {FORKS}"
            for each in live:
                await each.destroy()  # type: ignore[attr-defined]  # every one is a sandbox
    await origin.destroy()
    return min(times["fork"]), min(times["cold"])


async def main(rounds: int) -> int:
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        archive = tree(directory / "tree")
        backend = NamespacesBackend(slots=FORKS + 4, state_dir=directory / "state")
        try:
            await backend.start()
        except Unavailable as error:
            print(error, file=sys.stderr)
            for each, (floor, good) in FLOORS.items():
                report(each, None, floor=floor, good=good, better="lower", load=load)
            return 0
        try:
            measured = {
                "sandbox_reset": await resets(backend, directory, rounds),
                "sandbox_fork": await forks(backend, archive, max(3, rounds // 8)),
            }
        finally:
            await backend.close()
    for each, (ours, theirs) in measured.items():
        floor, good = FLOORS[each]
        times = {"ours_ms": round(ours * 1e3, 3), "theirs_ms": round(theirs * 1e3, 3)}
        report(each, ours / theirs, floor=floor, good=good, better="lower", load=load, **times)
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=40, help="interleaved pairs")
    sys.exit(uvloop.run(main(parser.parse_args().rounds)))
