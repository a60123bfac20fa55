"""Publishing a policy version against a plain copy of the same bytes with a checksum.

The copy reads a file, takes its SHA-256 and writes it beside: what anybody would do to hand weights over safely. A publication exports
nothing here (the tensors are in memory, as in a step) but does all the rest: a checksum per tensor, the safetensors file, the
checksum of the file, an atomic write, the manifest, and forgetting old versions. Interleaved A B A B; the ratio is of the two
minima. The second line is the quick start's policy, where fixed costs weigh most; it has no floor.

`weight_load` is the other side: what a rollout worker does to a version before its engine sees it (manifest, config, file with its
checksum, each tensor with its checksum) over a read of the same file with its checksum. It has no floor.

    python -m bench.weight_publication --megabytes 64
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from bench.result import report
from temper.api.common.v1.common_pb2 import BlobRef
from temper.api.trainer.v1.trainer_pb2 import PolicyRecord
from temper.rollout.publication import fetch_weights, policy_files
from temper.runtime.blobs import BlobStore
from temper.trainer.config import PublicationConfig
from temper.trainer.engine.base import NamedTensor
from temper.trainer.weights import Publisher

FLOOR, GOOD = 1.5, 1.2
TENSOR_BYTES = 1 << 20
SMALL_BYTES = 3_094_736  # the quick start's policy
Run = Callable[[], Awaitable[None]]


def tensors(size: int) -> list[NamedTensor]:
    """Random weights of about `size` bytes."""
    count = max(1, size // TENSOR_BYTES)
    each = size // count // 4 * 4
    return [
        NamedTensor(f"model.layers.{n}.weight", "F32", (each // 4,), os.urandom(each)) for n in range(count)
    ]


async def timed(run: Run) -> float:
    began = time.perf_counter()
    await run()
    return time.perf_counter() - began


class Trial:
    """One size of weights in a directory: the four things that are timed."""

    def __init__(self, folder: Path, size: int) -> None:
        self._folder, self._made = folder, tensors(size)
        self._source = folder / "source"
        self._source.write_bytes(b"".join(tensor.data for tensor in self._made))
        self._blobs = BlobStore((folder / "objects").as_uri())
        self._last = PolicyRecord()

    async def open(self) -> None:
        """Before the first publication."""
        files: dict[str, BlobRef] = {"config.json": await self._blobs.put("config.json", b"{}")}
        self._publisher = Publisher(self._blobs, "bench", files, PublicationConfig(keep_versions=4))
        self._versions = iter(range(1 << 30))

    async def publish(self) -> None:
        version = next(self._versions)
        manifest = await self._publisher.publish(version, self._made, now=time.time())
        await self._publisher.forget(version)
        self._last = PolicyRecord(version=version, manifest=manifest)

    async def copy(self) -> None:
        data = self._source.read_bytes()
        hashlib.sha256(data).hexdigest()
        (self._folder / "copy.part").write_bytes(data)
        (self._folder / "copy.part").rename(self._folder / "copy")

    async def load(self) -> None:
        await policy_files(self._blobs, await fetch_weights(self._blobs, self._last))

    async def read(self) -> None:
        hashlib.sha256(self._source.read_bytes()).hexdigest()


async def measure(size: int, rounds: int) -> dict[str, float]:
    """Shortest seconds of each."""
    with tempfile.TemporaryDirectory() as root:
        trial = Trial(Path(root), size)
        await trial.open()
        runs: dict[str, Run] = {
            "publish": trial.publish,
            "copy": trial.copy,
            "load": trial.load,
            "read": trial.read,
        }
        turns = [{name: await timed(run) for name, run in runs.items()} for _ in range(rounds)]
    return {name: min(turn[name] for turn in turns) for name in runs}


def main() -> None:
    """Two lines for large weights, two for small ones."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    for suffix, size, floor in (("", arguments.megabytes << 20, FLOOR), ("_small", SMALL_BYTES, None)):
        best = asyncio.run(measure(size, arguments.rounds))
        report(
            f"weight_publication{suffix}",
            best["publish"] / best["copy"],
            floor=floor,
            good=GOOD if floor else None,
            better="lower",
            load=load,
            **milliseconds(best, "publish", "copy"),
            bytes=size,
        )
        report(
            f"weight_load{suffix}",
            best["load"] / best["read"],
            floor=None,
            good=None,
            better="lower",
            load=load,
            **milliseconds(best, "load", "read"),
            bytes=size,
        )


def milliseconds(best: dict[str, float], *names: str) -> dict[str, float]:
    """For the details."""
    return {f"{name}_ms": round(best[name] * 1e3, 2) for name in names}


if __name__ == "__main__":
    main()
