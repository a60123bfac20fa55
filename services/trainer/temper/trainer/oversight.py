"""Looks at the samples and the outcome of each step and says what should not have happened. Its memory is part of a snapshot."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from temper.trainer.engine.base import StepOutcome
from temper.trainer.intake import broken
from temper.trainer.mismatch import MismatchWatch
from temper.trainer.notices import Notices
from temper.trainer.resumption import Resumption
from temper.trainer.samples import Sample


class Oversight:
    """Of one job. ``trainer``: the engine's name and build, for sentences."""

    def __init__(self, notices: Notices, trainer: str) -> None:
        self._notices, self._trainer = notices, trainer
        self._metrics: Mapping[str, float] = {}
        self._mismatch, self._resumption = MismatchWatch(), Resumption()

    def resume(self, facts: Mapping[str, Any], announced: Mapping[int, Mapping[str, float]]) -> None:
        """Go on from a snapshot's facts; ``announced`` are the metrics of steps that are made again."""
        self._metrics = dict(facts.get("metrics", {}))
        self._mismatch = MismatchWatch.of(facts.get("mismatch", ()))
        self._resumption = Resumption(self._metrics or None, announced)

    def forget(self) -> None:
        """What was seen is of a state that was given up."""
        self._mismatch, self._resumption = MismatchWatch(), Resumption()

    def facts(self) -> dict[str, Any]:
        """For a snapshot."""
        finite = {name: value for name, value in self._metrics.items() if math.isfinite(value)}
        return {"mismatch": list(self._mismatch.values), "metrics": finite}

    async def samples(self, step: int, samples: Sequence[Sample]) -> None:
        """What came for a step."""
        for reason, count in broken(samples).items():
            await self._notices.warn("broken_samples", f"step {step}: {count} masked: {reason}", key=reason)

    async def outcome(self, step: int, outcome: StepOutcome, engines: set[str]) -> StepOutcome:
        """A step's outcome with the trend of the mismatch; ``engines`` are the builds that played its samples."""
        trend = self._mismatch.add(outcome.metrics)
        self._metrics = outcome.metrics
        if problem := self._resumption.problem(step, outcome.metrics):
            await self._notices.warn("resumption", problem, key=str(step))
        if problem := self._mismatch.alarm():
            builds = ", ".join(sorted(engines))
            problem = f"{problem}: rollout ({builds}) and trainer ({self._trainer}) disagree"
            await self._notices.warn("mismatch", problem, key=builds)
        if outcome.metrics.get("rm_weight") == 0.0:
            share = outcome.metrics["rm_disagreement"]
            problem = f"reward model and verifier disagree on {share:.0%} of pairs: the model has no say"
            await self._notices.warn("reward_model", problem, key=str(step))
        if outcome.skipped:
            await self._notices.warn("step_skipped", f"step {step}: {outcome.skipped}", key=str(step))
        return replace(outcome, metrics={**outcome.metrics, **trend})
