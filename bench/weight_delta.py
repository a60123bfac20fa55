"""Deltas between policy versions: how small they are, and what they cost.

`weight_delta_1`, `weight_delta_3`: bytes of the delta file over bytes of the full file when 1 % or 3 % of the elements changed, bf16.

`weight_delta_apply`: encode + put + fetch + apply + verify of a delta at 3 % changed, over a read, SHA-256 and write of the full
bytes. Interleaved, minima.

`weight_delta_step_f32`, `weight_delta_step_bf16`: one optimizer step of the quick start's policy at its learning rate, batch size and
algorithm (on made-up episodes), as fp32 weights are published, and as the same weights would be in bf16; `_small_rate` the same at 1e-6,
as large models are tuned. No floor: it says where deltas pay.

    python -m bench.weight_delta --megabytes 64
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.result import report
from temper.api.trainer.v1.trainer_pb2 import PolicyRecord
from temper.rollout.publication import fetch_weights
from temper.runtime.blobs import BlobStore
from temper.runtime.delta import Kind, encode
from temper.trainer.algorithms import algorithm
from temper.trainer.config import PublicationConfig
from temper.trainer.engine.base import NamedTensor, OptimizerSettings, PhaseStart
from temper.trainer.engine.torch import make
from temper.trainer.samples import Batch, Sample, scores
from temper.trainer.weights import Publisher

BOUNDS = {0.01: 0.03, 0.03: 0.08}
FLOOR, GOOD = 3.0, 1.5
SMALL_RATE = 1e-6
TENSOR_BYTES = 1 << 20
WARM_START = Path(__file__).parents[1] / "examples" / "checkpoints" / "warmstart"
RATE, GROUPS, SAMPLES, TOKENS = 4e-4, 16, 8, 64  # the quick start's
WARM_UP = 6  # steps until Adam has its moments


def random_weights(size: int) -> list[np.ndarray]:
    """bf16 numbers as whole numbers of 16 bits, in tensors of a megabyte."""
    rng = np.random.default_rng(1)
    return [rng.integers(0, 2**16, TENSOR_BYTES // 2, np.uint16) for _ in range(max(1, size // TENSOR_BYTES))]


def stepped(values: Sequence[np.ndarray], share: float, seed: int) -> list[np.ndarray]:
    """A share of the elements moved by one unit in the last place or two, as a small step moves bf16 numbers."""
    rng = np.random.default_rng(seed)
    return [
        np.where(rng.random(each.shape) < share, each + rng.choice([1, 2], each.shape), each).astype(
            np.uint16
        )
        for each in values
    ]


def named(values: Sequence[np.ndarray], dtype: str = "BF16") -> list[NamedTensor]:
    return [NamedTensor(f"layers.{n}", dtype, each.shape, each.tobytes()) for n, each in enumerate(values)]


class Trial:
    """A job whose versions differ by 3 %, beside a plain copy of the same bytes."""

    def __init__(self, folder: Path, size: int, kind: str) -> None:
        self._blobs = BlobStore((folder / "objects").as_uri())
        settings = PublicationConfig.model_validate({"full_every": 64, "delta": kind})
        self._publisher = Publisher(self._blobs, "bench", {}, settings)
        self._versions = [random_weights(size)]
        self._versions.append(stepped(self._versions[0], 0.03, 2))
        self._tensors = [named(values) for values in self._versions]
        self._source, self._copy = folder / "source", folder / "copy"
        self._source.write_bytes(b"".join(tensor.data for tensor in self._tensors[0]))
        self._number = 0
        self.delta_bytes = 0

    async def open(self) -> None:
        """The full weights that everything builds on."""
        manifest = await self._publisher.publish(0, self._tensors[0], now=time.time())
        self._held = await fetch_weights(self._blobs, PolicyRecord(version=0, manifest=manifest))

    async def hand_over(self) -> None:
        """Publish the next version as a delta and take it up."""
        self._number += 1
        tensors = self._tensors[self._number % 2]
        manifest = await self._publisher.publish(self._number, tensors, now=time.time())
        record = PolicyRecord(version=self._number, manifest=manifest)
        self._held = await fetch_weights(self._blobs, record, self._held)
        self.delta_bytes = self._held.fetched_bytes

    async def copy(self) -> None:
        """What anybody would do with the full bytes."""
        data = self._source.read_bytes()
        hashlib.sha256(data).hexdigest()
        self._copy.write_bytes(data)


async def cost(size: int, rounds: int, kind: str) -> tuple[float, float]:
    """Shortest seconds of a hand-over by delta, and of a copy."""
    with tempfile.TemporaryDirectory() as root:
        trial = Trial(Path(root), size, kind)
        await trial.open()
        seconds: dict[str, list[float]] = {"hand_over": [], "copy": []}
        for _ in range(rounds):
            for name, run in (("hand_over", trial.hand_over), ("copy", trial.copy)):
                began = time.perf_counter()
                await run()
                seconds[name].append(time.perf_counter() - began)
    return min(seconds["hand_over"]), min(seconds["copy"])


def ratio(before: Sequence[np.ndarray], after: Sequence[np.ndarray], kind: Kind) -> float:
    """Bytes of the deltas over bytes of the weights."""
    deltas = [
        encode(old.tobytes(), new.tobytes(), width=new.itemsize, kind=kind) or b""
        for old, new in zip(before, after, strict=True)
    ]
    return sum(map(len, deltas)) / sum(each.nbytes for each in after)


def bf16(values: Sequence[np.ndarray]) -> list[np.ndarray]:
    """fp32 bits rounded to nearest even, as bf16 bits."""
    return [((each + 0x7FFF + ((each >> 16) & 1)) >> 16).astype(np.uint16) for each in values]


class Steps:
    """Optimizer steps of the warm start under GRPO: its numbers of groups, samples and tokens, random actions and rewards."""

    def __init__(self) -> None:
        self._engine = make(threads=1)
        weights = (WARM_START / "model.safetensors").read_bytes()
        self._engine.load(json.loads((WARM_START / "config.json").read_text()), [weights])
        self._engine.begin(PhaseStart())
        self._rng = np.random.default_rng(1)
        self._algorithm = algorithm("grpo")
        self._settings = self._algorithm.settings({}, {}, max_staleness=1)

    def take(self, count: int, rate: float = RATE) -> None:
        """Some steps."""
        for _ in range(count):
            samples = [self._sample(group) for group in range(GROUPS) for _ in range(SAMPLES)]
            drawn = self._engine.logprobs(samples)
            samples = [replace(each, logprobs=mu) for each, mu in zip(samples, drawn, strict=True)]
            batch = Batch(samples, self._algorithm.advantages(scores(samples), self._settings))
            self._engine.step(batch, self._algorithm, self._settings, OptimizerSettings(lr=rate))

    def bits(self) -> list[np.ndarray]:
        """The fp32 weights as whole numbers."""
        return [np.frombuffer(tensor.data, np.uint32).copy() for tensor in self._engine.export()]

    def _sample(self, group: int) -> Sample:
        ids = self._rng.integers(1, 256, TOKENS)
        mask = np.arange(TOKENS) >= TOKENS // 2
        reward = float(self._rng.integers(0, 2))
        return Sample(ids, mask, np.zeros(TOKENS, np.float32), reward, True, group, "calc")


def main() -> None:
    """Sizes, costs, and where it pays."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    load, size = os.getloadavg()[0], arguments.megabytes << 20
    base = random_weights(size)
    for share, bound in BOUNDS.items():
        sizes = {kind.name.lower(): ratio(base, stepped(base, share, 2), kind) for kind in Kind}
        details = {f"{name}_ratio": round(value, 4) for name, value in sizes.items()}
        report(
            f"weight_delta_{share * 100:.0f}",
            max(sizes.values()),
            floor=bound,
            good=None,
            better="lower",
            load=load,
            **details,
        )
    for kind in ("xor", "overwrite"):
        spent, copied = asyncio.run(cost(size, arguments.rounds, kind))
        times = {"hand_over_ms": round(spent * 1e3, 2), "copy_ms": round(copied * 1e3, 2)}
        report(
            f"weight_delta_apply_{kind}",
            spent / copied,
            floor=FLOOR,
            good=GOOD,
            better="lower",
            load=load,
            **times,
        )
    steps = Steps()
    steps.take(WARM_UP)
    for suffix, rate in (("", RATE), ("_small_rate", SMALL_RATE)):
        before = steps.bits()
        steps.take(1, rate)
        after = steps.bits()
        for name, old, new in (("f32", before, after), ("bf16", bf16(before), bf16(after))):
            moved = sum(int((one != two).sum()) for one, two in zip(old, new, strict=True)) / sum(
                map(np.size, new)
            )
            found = ratio(old, new, Kind.XOR)
            report(
                f"weight_delta_step_{name}{suffix}",
                found,
                floor=None,
                good=None,
                better="lower",
                load=load,
                changed=round(moved, 4),
                lr=rate,
            )


if __name__ == "__main__":
    main()
