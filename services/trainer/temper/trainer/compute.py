"""What happens to the samples of one step on the worker thread: opinions, advantages, the engine's step."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from temper.trainer.advantage import Floats
from temper.trainer.advantage.base import ALIKE
from temper.trainer.advantage.scaling import RewardScale
from temper.trainer.algorithms import algorithm
from temper.trainer.engine.base import Engine, StepOutcome
from temper.trainer.judging import JUDGE, opinion, rewarded, trusted
from temper.trainer.plan import PhasePlan
from temper.trainer.samples import Batch, Sample, scores


def train(
    engine: Engine,
    phase: PhasePlan,
    samples: Sequence[Sample],
    phase_step: int,
    *,
    version: int = 0,
    scale: RewardScale | None = None,
) -> StepOutcome:
    """One step of a phase; metrics say what the reward model thought, where it was asked.

    ``version`` is that of the policy at the start of the step; ``scale`` remembers the rewards of each domain from step to step.
    """
    rewards, said = samples, dict[str, float]()
    if phase.judged:
        found = opinion(samples, *engine.judged(samples))
        weight = trusted(found, phase.settings)
        rewards, said = rewarded(samples, found, weight), found.metrics(weight)
    advantages = _advantages(phase, rewards, scale or RewardScale())
    if phase.settings.params.get("overlong_filter", 0.0) >= 1.0:
        rewards = [silenced(sample) if sample.truncated else sample for sample in rewards]
        said["overlong_filtered"] = float(sum(sample.truncated and sample.valid for sample in samples))
    batch = Batch(rewards, advantages, phase.shares, phase_step, version)
    outcome = engine.step(batch, phase.algorithm, phase.settings, phase.tuned(phase_step))
    if phase.refreshes(phase_step):
        said |= _refreshed(engine, phase, samples, phase_step)
    if phase.algorithm.needs_reward:
        said["flat_groups"] = float(flat(samples))
    return replace(outcome, metrics={**outcome.metrics, **said})


def _advantages(phase: PhasePlan, samples: Sequence[Sample], scale: RewardScale) -> Floats:
    """By the algorithm's estimator; rewards on one scale first where the phase wants it."""
    found = scores(samples)
    if phase.settings.choices.get("reward_scale") == "running_std":
        domains = [sample.domain for sample in samples]
        scale.learn(found, domains)
        found = scale.scaled(found, domains)
    return phase.algorithm.advantages(found, phase.settings)


def silenced(sample: Sample) -> Sample:
    """The sample without a word in the gradient; its reward has counted for the others' advantages."""
    return replace(sample, mask=np.zeros_like(sample.mask))


def flat(samples: Sequence[Sample]) -> int:
    """Tasks whose valid samples all earned the same: what a step carried along without learning from it."""
    rewards: dict[int, list[float]] = {}
    for sample in samples:
        if sample.valid:
            rewards.setdefault(sample.group, []).append(sample.reward)
    return sum(max(found) - min(found) <= ALIKE for found in rewards.values())


def _refreshed(
    engine: Engine, phase: PhasePlan, samples: Sequence[Sample], phase_step: int
) -> dict[str, float]:
    """Let the reward model learn from the verifier's view of this step's samples."""
    judge = algorithm(JUDGE)
    settings = judge.settings({}, {}, max_staleness=0)
    batch = Batch(samples, judge.advantages(scores(samples), settings))
    outcome = engine.step(batch, judge, settings, replace(phase.tuned(phase_step), muon_lr=0.0))
    return {name: value for name, value in outcome.metrics.items() if name.startswith("rm_")}
