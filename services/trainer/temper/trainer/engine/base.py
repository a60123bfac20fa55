"""The seam between the trainer and whatever computes: one protocol, filled by ``torch`` and by the torch-free twin ``fake``.

An engine holds one policy with its optimizer. It runs on a worker thread, so that the service's loop keeps its heartbeats; calls are
strictly sequential. Everything that crosses is plain data: names, bytes, numpy arrays.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from temper.trainer.algorithms.base import Algorithm, Settings
from temper.trainer.algorithms.targets import NOTHING_MORE, Needs
from temper.trainer.samples import Batch, Sample


@dataclass(frozen=True, slots=True)
class NamedTensor:
    """One tensor on its way out: raw little-endian bytes under its Hugging Face name."""

    name: str
    """For example ``model.layers.0.self_attn.q_proj.weight``."""
    dtype: str
    """safetensors name of the element type: F32, BF16, ..."""
    shape: tuple[int, ...]
    data: bytes
    """C-order elements."""


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """AdamW for one step; the learning rate is already scheduled."""

    lr: float
    beta1: float = 0.9
    beta2: float = 0.99
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    muon_lr: float = 0.0
    """Scheduled learning rate of Muon on hidden matrices; 0 leaves everything to AdamW."""


@dataclass(frozen=True, slots=True)
class Teacher:
    """A policy to learn from."""

    weights: Sequence[bytes]
    """safetensors files."""
    config: Mapping[str, Any] | None = None
    """Its ``config.json``; None: the policy's."""


@dataclass(frozen=True, slots=True)
class PhaseStart:
    """What an engine must get ready before the first step of a phase."""

    needs: Needs = NOTHING_MORE
    """Reference, heads."""
    teacher: Teacher | None = None
    """The reference; None: the policy as it is now."""
    kl_beta: float = 0.0
    """Where β begins."""


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What one optimizer step did."""

    metrics: Mapping[str, float]
    """loss, grad_norm, entropy, ratio_mean, mismatch_*, ...: means over action tokens unless the name says otherwise."""
    tokens: int
    """Action tokens that reached the gradient."""
    total_tokens: int
    """All tokens that went through the model."""
    skipped: str = ""
    """Empty, or the reason why the weights were left alone."""


WEIGHTS, OPTIMIZER = "weights.safetensors", "optimizer.safetensors"
REFERENCE, HEAD = "reference.safetensors", "head.safetensors"
"""Files of an ``EngineState``; an engine leaves out what it does not have."""
JUDGE = "judge."
"""Prefix of those of the reward model."""
DEFAULT_MICRO_BATCH = 2048
"""Tokens of a micro-batch where a job names none: more only costs memory at the sizes a CPU trains."""


@dataclass(frozen=True, slots=True)
class EngineState:
    """Everything needed to redo the next step bit for bit: safetensors files by name, and small facts as JSON values."""

    files: Mapping[str, bytes]
    """For example ``weights.safetensors`` and ``optimizer.safetensors``."""
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """JSON-serialisable: optimizer step count, RNG state in hex, ..."""


class Engine(Protocol):
    """What a vendor fills."""

    @property
    def name(self) -> str:
        """Name and build for records, e.g. ``torch/2.13.0 fp32``."""
        ...

    def build(self, config: Mapping[str, Any], *, seed: int) -> None:
        """Random weights of a ``config.json``. Raises Rejected for a model the engine cannot compute."""
        ...

    def load(self, config: Mapping[str, Any], weights: Sequence[bytes]) -> None:
        """Weights from safetensors files. Raises Rejected when names or shapes do not fit the configuration."""
        ...

    def check_teacher(self, config: Mapping[str, Any]) -> None:
        """Raises Rejected for the ``config.json`` of a teacher that the policy cannot learn from, before anything is trained."""
        ...

    def begin(self, phase: PhaseStart) -> None:
        """Start a phase: forget moments and step count, freeze a reference, add or drop the value head.

        A reward model is kept from phase to phase; the first one begins as a copy of the policy.

        Raises Rejected for a teacher that does not fit the policy.
        """
        ...

    def logprobs(self, samples: Sequence[Sample]) -> list[NDArray[np.float32]]:
        """Per sample ``[token]`` log π of each token given those before it; 0 where the mask is False."""
        ...

    def judged(self, samples: Sequence[Sample]) -> tuple[NDArray[np.float32], int]:
        """``[sample]`` what the reward model says (NaN where nobody acted), and its version: the updates it has seen.

        Raises Rejected when no phase has trained one.
        """
        ...

    def step(
        self, batch: Batch, algorithm: Algorithm, settings: Settings, optimizer: OptimizerSettings
    ) -> StepOutcome:
        """Train on one batch: the policy, or the reward model beside it where the algorithm needs scores.

        Non-finite gradients leave the weights alone and say so in ``skipped``.
        """
        ...

    def snapshot(self) -> EngineState:
        """A copy of weights, optimizer and RNG."""
        ...

    def restore(self, config: Mapping[str, Any], state: EngineState) -> None:
        """Back to a snapshot. Raises Rejected when the files do not fit."""
        ...

    def export(self) -> Iterator[NamedTensor]:
        """The policy, tensor by tensor, under Hugging Face names in a stable order."""
        ...

    def export_judge(self) -> Iterator[NamedTensor]:
        """The reward model under the names of a Hugging Face sequence classifier with one label.

        Raises Rejected when no phase has trained one.
        """
        ...

    def close(self) -> None:
        """Let go of what is held outside this process. May come from any thread; a call that is under way fails."""
        ...
