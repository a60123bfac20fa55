"""Inputs of advantage estimators, and the statistics they share.

Estimators are pure functions over samples ``[sample]`` of one optimizer step. ``mean`` and ``s`` run over *valid* members of a
group only; invalid members get advantage 0, and so does a group with fewer than two valid members.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

EPS = 1e-6
ALIKE = 1e-6  # rewards that span no more make no preference, and no group worth a place in a step
FLAT = 1e-9  # a group whose rewards span no more than this has nothing to teach


@dataclass(frozen=True, slots=True)
class Component:
    """One part of a reward: ``reward = sum of weight * value``."""

    value: float
    weight: float


@dataclass(frozen=True, slots=True)
class Scores:
    """Rewards of one step's samples, in batch order.

    Example: two groups of two, one member lost to the infrastructure::

        Scores(rewards=[1, 0, 1, nan], valid=[True, True, True, False], group=[0, 0, 1, 1], lengths=[9, 12, 7, 0])
    """

    rewards: Floats
    """[sample] reward; anything where not valid."""
    valid: NDArray[np.bool_]
    """[sample] whether the reward and the tokens may be used."""
    group: NDArray[np.int64]
    """[sample] index of the sample's group: samples of one task."""
    lengths: NDArray[np.int64]
    """[sample] action tokens."""
    components: Sequence[Mapping[str, Component]] = ()
    """[sample] what each reward is made of; an empty mapping, or nothing at all, for rewards of one piece."""

    def groups(self) -> Iterator[NDArray[np.int64]]:
        """Indices of the valid members of each group that has any."""
        for group in np.unique(self.group):
            members = np.flatnonzero((self.group == group) & self.valid)
            if members.size:
                yield members

    def comparable(self) -> Iterator[NDArray[np.int64]]:
        """Indices of the valid members of each group that has at least two."""
        return (members for members in self.groups() if members.size > 1)

    def zeros(self) -> Floats:
        """Zero advantages for every sample."""
        return np.zeros(self.rewards.shape[0], dtype=np.float64)


def is_flat(rewards: Floats) -> bool:
    """Whether all rewards are the same for practical purposes."""
    return float(rewards.max() - rewards.min()) <= FLAT


def whiten(values: Floats) -> Floats:
    """Zero mean and unit (n-1) standard deviation over all values; fewer than two values give zeros."""
    if values.size < 2:
        return np.zeros_like(values)
    return (values - values.mean()) / (values.std(ddof=1) + EPS)
