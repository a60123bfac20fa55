"""The deterministic twin of an engine: no torch, no learning, every contract kept.

Its policy is a handful of numbers that move by a digest of what it was trained on, so two runs over the same batches end in the
same bytes and any difference in order, content or count shows. Tests and dry runs use it; its logprobs are uniform.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from temper.runtime.errors import Rejected
from temper.trainer.algorithms.base import Algorithm, Settings
from temper.trainer.engine.base import (
    WEIGHTS,
    EngineState,
    NamedTensor,
    OptimizerSettings,
    PhaseStart,
    StepOutcome,
)
from temper.trainer.samples import Batch, Sample
from temper.trainer.weights import safetensors

SIZE = 8  # numbers in the fake policy
NAME = "model.embed_tokens.weight"


class FakeEngine:
    """``Engine`` without a model."""

    def __init__(self) -> None:
        self._weights: NDArray[np.float32] = np.zeros(SIZE, dtype=np.float32)
        self._vocab = 2
        self._updates = 0
        self._judge_version = 0

    @property
    def name(self) -> str:
        """See ``Engine``."""
        return "fake/1"

    def build(self, config: Mapping[str, Any], *, seed: int) -> None:
        """See ``Engine``."""
        self._adopt(config)
        self._weights = np.random.default_rng(seed).standard_normal(SIZE).astype(np.float32)

    def load(self, config: Mapping[str, Any], weights: Sequence[bytes]) -> None:
        """See ``Engine``. Any file is taken: its digest becomes the policy, or its own numbers if it is one of ours."""
        self._adopt(config)
        ours = [_own(data) for data in weights]
        if len(ours) == 1 and ours[0] is not None:
            self._weights = ours[0]
            return
        digest = hashlib.sha256(b"".join(weights)).digest()
        self._weights = (np.frombuffer(digest, dtype=np.uint8)[:SIZE] / 256).astype(np.float32)

    def _adopt(self, config: Mapping[str, Any]) -> None:
        if "vocab_size" not in config:
            raise Rejected("config.json has no vocab_size", field="config.json:vocab_size")
        self._vocab = int(config["vocab_size"])
        self._updates = 0

    def check_teacher(self, config: Mapping[str, Any]) -> None:
        """See ``Engine``."""
        if config.get("vocab_size") != self._vocab:
            raise Rejected(
                f"a vocabulary of {config.get('vocab_size')} tokens, the policy's has {self._vocab}"
            )

    def begin(self, phase: PhaseStart) -> None:
        """See ``Engine``. It has no heads to grow; a reference is as uniform as the policy, and a teacher leaves its mark."""
        self._updates = 0
        if phase.teacher is not None:
            self._updates = int.from_bytes(
                hashlib.sha256(b"".join(phase.teacher.weights)).digest()[:4], "little"
            )

    def logprobs(self, samples: Sequence[Sample]) -> list[NDArray[np.float32]]:
        """See ``Engine``: uniform over the vocabulary."""
        uniform = np.float32(-math.log(self._vocab))
        return [np.where(sample.mask, uniform, np.float32(0)) for sample in samples]

    def judged(self, samples: Sequence[Sample]) -> tuple[NDArray[np.float32], int]:
        """See ``Engine``: longer is better."""
        self._must_have_judge()
        return np.array([sample.actions or math.nan for sample in samples], np.float32), self._judge_version

    def export_judge(self) -> Iterator[NamedTensor]:
        """See ``Engine``."""
        self._must_have_judge()
        return self.export()

    def _must_have_judge(self) -> None:
        if not self._judge_version:
            raise Rejected("the job has no reward model yet", hint="train one in an earlier phase")

    def step(
        self, batch: Batch, algorithm: Algorithm, settings: Settings, optimizer: OptimizerSettings
    ) -> StepOutcome:
        """See ``Engine``."""
        chosen = batch.trainable()
        if not chosen:
            return StepOutcome({"loss": 0.0, "lr": optimizer.lr}, 0, 0, skipped="no valid action tokens")
        digest = hashlib.sha256(struct.pack("<q", self._updates))
        for i in chosen:
            digest.update(batch.samples[i].ids.tobytes())
            digest.update(struct.pack("<d", float(batch.advantages[i])))
        if algorithm.needs(settings).scores:  # the policy stays as it is
            self._judge_version += 1
            return StepOutcome({"loss": 0.0, "grad_norm": 1.0, "lr": optimizer.lr}, 0, 0)
        push = (np.frombuffer(digest.digest(), dtype=np.uint8)[:SIZE] / 128 - 1).astype(np.float32)
        self._weights += np.float32(optimizer.lr) * push
        self._updates += 1
        tokens = sum(batch.samples[i].actions for i in chosen)
        metrics = {
            "loss": 0.0,
            "entropy": math.log(self._vocab),
            "grad_norm": 1.0,
            "kl": 0.0,
            "lr": optimizer.lr,
        }
        return StepOutcome(metrics, tokens, sum(batch.samples[i].ids.size for i in chosen))

    def snapshot(self) -> EngineState:
        """See ``Engine``."""
        return EngineState(
            {WEIGHTS: safetensors(list(self.export()))},
            {"updates": self._updates, "judge_version": self._judge_version, "engine": self.name},
        )

    def restore(self, config: Mapping[str, Any], state: EngineState) -> None:
        """See ``Engine``."""
        self.load(config, [state.files[WEIGHTS]])
        self._updates = int(state.facts["updates"])
        self._judge_version = int(state.facts["judge_version"])

    def export(self) -> Iterator[NamedTensor]:
        """See ``Engine``."""
        yield NamedTensor(NAME, "F32", (SIZE,), self._weights.tobytes())

    def close(self) -> None:
        """See ``Engine``: nothing is held outside."""


def _own(data: bytes) -> NDArray[np.float32] | None:
    """The numbers in a file that ``export`` made, or None."""
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    if header.keys() - {"__metadata__"} != {NAME} or header[NAME]["shape"] != [SIZE]:
        return None
    return np.frombuffer(data[8 + size :], dtype=np.float32).copy()


def make(*, micro_batch_tokens: int = 0, threads: int = 1) -> FakeEngine:  # noqa: ARG001 - every engine is made alike
    """A twin."""
    return FakeEngine()
