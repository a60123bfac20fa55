"""Advantage estimators by name; one file each. They are pure functions from ``Scores`` to ``[sample]`` advantages."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from temper.trainer.advantage import batch, best_of_group, dr_grpo, gdpo, grpo, maxrl, opo, rloo
from temper.trainer.advantage.base import Component, Floats, Scores

__all__ = ["ESTIMATORS", "Component", "Estimator", "Floats", "Scores"]

Estimator = Callable[[Scores], Floats]

ESTIMATORS: Mapping[str, Estimator] = MappingProxyType(
    {
        "grpo": grpo.estimate,
        "dr_grpo": dr_grpo.estimate,
        "rloo": rloo.estimate,
        "maxrl": maxrl.estimate,
        "opo": opo.estimate,
        "best_of_group": best_of_group.estimate,
        "batch": batch.estimate,
        "gdpo": gdpo.estimate,
    }
)
