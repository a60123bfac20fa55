"""What an algorithm needs to know about all sequences of an update before it can say what each token is worth.

A loss sees one micro-batch. Whitening, quantiles and preference pairs need all of them, on all ranks. So an engine first measures
(a forward pass without gradients), ``prepare`` turns the measurements into numbers per token or per sequence, and the loss is then
a sum over tokens again: it does not matter how the batch was cut.

A pairwise loss becomes such a sum by its derivative. For ``L(s_1 .. s_n)`` with ``s_i`` the score of sequence ``i``, the surrogate
``Σ_i (∂L/∂s_i)·s_i`` with fixed coefficients has the gradient of ``L``; its value is reported from ``Targets.loss``.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from temper.trainer.advantage import Floats
from temper.trainer.advantage.base import ALIKE

PerToken = Sequence[Floats]
"""One [action token] array per sample."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What an engine must hold and measure for a phase."""

    reference: bool = False
    """A frozen policy: the one at the start of the phase, or the phase's teacher."""
    values: bool = False
    """A value head, read before every action token."""
    scores: bool = False
    """A value head, read at the last token of every sequence."""
    targets: bool = False
    """Whether ``prepare`` has work to do."""
    every_update: bool = False
    """Whether ``prepare`` depends on the weights as they are, not on those at the start of the step."""

    @property
    def head(self) -> bool:
        """Whether there is a head beside the policy's own."""
        return self.values or self.scores


NOTHING_MORE = Needs()
"""Only the policy itself."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Samples that reach the gradient, measured under the weights as they are now."""

    rewards: Floats
    """[sample]."""
    group: NDArray[np.int64]
    """[sample] samples with one number answer the same task."""
    advantages: Floats
    """[sample] by the algorithm's estimator."""
    log_pi: PerToken
    """log π."""
    log_mu: PerToken
    """log μ of the rollout engine."""
    entropy: PerToken
    """Entropy of the policy."""
    log_ref: PerToken | None = None
    """log π_ref; None without a reference."""
    values: PerToken | None = None
    """V before each token; None without a critic."""
    scores: Floats | None = None
    """[sample] head at the last token; None where not asked for."""
    kl_beta: float = 0.0
    """β as it stands."""

    def kl(self) -> PerToken:
        """k1 = log π - log π_ref per token, limited to ±10; zeros without a reference."""
        if self.log_ref is None:
            return [np.zeros_like(each) for each in self.log_pi]
        return [np.clip(pi - ref, -10.0, 10.0) for pi, ref in zip(self.log_pi, self.log_ref, strict=True)]

    def log_ratio(self) -> PerToken:
        """log π - log π_ref per token, unlimited; zeros without a reference."""
        if self.log_ref is None:
            return [np.zeros_like(each) for each in self.log_pi]
        return [pi - ref for pi, ref in zip(self.log_pi, self.log_ref, strict=True)]

    def pairs(self) -> Iterator[tuple[int, int]]:
        """(best, worst) sample of every task whose samples did not all earn the same."""
        for group in np.unique(self.group):
            members = np.flatnonzero(self.group == group)
            rewards = self.rewards[members]
            if rewards.max() - rewards.min() > ALIKE:
                yield int(members[rewards.argmax()]), int(members[rewards.argmin()])


@dataclass(frozen=True, slots=True)
class Targets:
    """What ``prepare`` gives back. Lists are in the order of ``Measured``; None leaves the default."""

    advantages: PerToken | None = None
    """Per token, in place of the sample's one number."""
    returns: PerToken | None = None
    """What V should be."""
    keep: PerToken | None = None
    """1 or 0: tokens that may speak."""
    score_weight: Floats | None = None
    """[sample] ∂L/∂score."""
    loss: float | None = None
    """Value of the loss where the surrogate's own says nothing."""
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    """Reported as they are."""
    nothing: str = ""
    """Why there is nothing to learn from these samples, if so: the update is skipped and says it."""
