"""Publishing a policy version against a plain copy of the same bytes with a checksum.

The copy reads a file, takes its SHA-256 and writes it beside: what anybody would do to hand weights over safely. A publication exports
nothing here (the tensors are in memory, as in a step) but does all the rest: a checksum per tensor, the safetensors file, the
checksum of the file, an atomic write, the manifest, and forgetting old versions. Interleaved A B A B; the ratio is of the two
minima. The second line is the quick start's policy, where fixed costs weigh most; it has no floor.

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
from temper.runtime.blobs import BlobStore
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


async def measure(size: int, rounds: int) -> tuple[float, float]:
    """Shortest seconds of a publication and of a copy."""
    made = tensors(size)
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        source = folder / "source"
        source.write_bytes(b"".join(tensor.data for tensor in made))
        publisher = Publisher(BlobStore((folder / "objects").as_uri()), "bench", {}, keep=4)
        versions = iter(range(1 << 30))

        async def publish() -> None:
            version = next(versions)
            await publisher.publish(version, made, now=time.time())
            await publisher.forget(version)

        async def copy() -> None:
            data = source.read_bytes()
            hashlib.sha256(data).hexdigest()
            (folder / "copy.part").write_bytes(data)
            (folder / "copy.part").rename(folder / "copy")

        pairs = [(await timed(publish), await timed(copy)) for _ in range(rounds)]
    return min(pair[0] for pair in pairs), min(pair[1] for pair in pairs)


def main() -> None:
    """Print one line for large weights, one for small ones."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    for name, size, floor in (
        ("weight_publication", arguments.megabytes << 20, FLOOR),
        ("weight_publication_small", SMALL_BYTES, None),
    ):
        published, copied = asyncio.run(measure(size, arguments.rounds))
        report(
            name,
            published / copied,
            floor=floor,
            good=GOOD if floor else None,
            better="lower",
            load=load,
            publish_ms=round(published * 1e3, 2),
            copy_ms=round(copied * 1e3, 2),
            bytes=size,
        )


if __name__ == "__main__":
    main()
