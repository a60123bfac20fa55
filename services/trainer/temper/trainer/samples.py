"""The trainer's own view of training samples: plain arrays, no protobuf, no tensors.

``Sample`` is one episode; ``Batch`` is what one optimizer step trains on. Both are made by ``intake`` from a group's table and
handed to an engine as they are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from temper.trainer.advantage import Component, Scores


@dataclass(frozen=True, slots=True)
class Sample:
    """One episode's tokens.

    Example: prompt of two tokens, two actions, no reward yet known to matter::

        Sample(ids=[257, 258, 49, 262], mask=[0, 0, 1, 1], logprobs=[0, 0, -.1, -.2], reward=1.0, valid=True, ...)
    """

    ids: NDArray[np.int64]
    """[token] token ids as the engine emitted or was fed them."""
    mask: NDArray[np.bool_]
    """[token] True where the policy (or the oracle) acted."""
    logprobs: NDArray[np.float32]
    """[token] log μ, 0 where the mask is False."""
    reward: float
    """Reward; NaN where there is none."""
    valid: bool
    """Whether the sample may reach a gradient."""
    group: int
    """Index of the task group within the batch: advantages compare samples of one group."""
    domain: str
    """Domain of the job's mix."""
    reason: str = ""
    """Why it is not valid: a sample class or a fault found in the arrays."""
    truncated: bool = False
    """Whether a limit on tokens or turns cut it off."""
    components: Mapping[str, Component] = field(default_factory=dict[str, Component])
    """What the reward is made of, where its environment says so."""
    versions: NDArray[np.int64] | None = None
    """[token] version of the policy that drew the token; None for demonstrations."""

    @property
    def actions(self) -> int:
        """Number of action tokens."""
        return int(self.mask.sum())


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples of one optimizer step with an advantage each."""

    samples: Sequence[Sample]
    """All samples, the invalid ones included: they count in reports, not in gradients."""
    advantages: NDArray[np.float64]
    """[sample] advantage; 0 where not valid."""
    shares: Mapping[str, float] = field(default_factory=dict[str, float])
    """Share of each domain in the job's mix."""
    number: int = 0
    """Step of the phase it is for: what is drawn at random for a step is drawn from it."""
    version: int = 0
    """Version of the policy at the start of the step."""

    def trainable(self) -> list[int]:
        """Indices of samples that may reach a gradient and have something to say."""
        return [i for i, sample in enumerate(self.samples) if sample.valid and sample.actions > 0]


def scores(samples: Sequence[Sample]) -> Scores:
    """The estimators' view of a batch."""
    return Scores(
        rewards=np.array([sample.reward for sample in samples], dtype=np.float64),
        valid=np.array([sample.valid for sample in samples], dtype=np.bool_),
        group=np.array([sample.group for sample in samples], dtype=np.int64),
        lengths=np.array([sample.actions for sample in samples], dtype=np.int64),
        components=[sample.components for sample in samples],
    )
