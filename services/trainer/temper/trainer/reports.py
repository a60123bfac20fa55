"""What the trainer tells the others after a step: the StepRecord for the log and the PolicyRecord for KV. Pure functions."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from google.protobuf.timestamp_pb2 import Timestamp

from temper.api.common.v1.common_pb2 import BlobRef, IndexRange
from temper.api.rollout.v1.rollout_pb2 import GroupRecord
from temper.api.trainer.v1.trainer_pb2 import PolicyRecord, StepRecord, TrainingState
from temper.trainer.diagnostics import by_domain
from temper.trainer.engine.base import StepOutcome
from temper.trainer.plan import PhasePlan
from temper.trainer.samples import Sample
from temper.trainer.state import Ledger


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one step."""

    wait: float
    """For groups."""
    data: float
    """Fetching and decoding."""
    compute: float
    """Forward, backward, update."""
    publish: float
    """Export, weights and manifest."""


@dataclass(frozen=True, slots=True)
class StepFacts:
    """One finished step, before it is told to anybody."""

    groups: Sequence[GroupRecord]
    staleness: Sequence[int]
    """[group] versions behind at consumption."""
    samples: Sequence[Sample]
    outcome: StepOutcome
    phase: int
    """Phase that the step belongs to."""
    restored: int | None = None
    """A rollback in the place of a step: number of the step whose state it restored."""


def timestamp(seconds: float) -> Timestamp:
    """Unix seconds as a message."""
    stamp = Timestamp()
    stamp.FromNanoseconds(int(seconds * 1e9))
    return stamp


def step_record(
    job_id: str,
    facts: StepFacts,
    phase: PhasePlan,
    ledger: Ledger,
    timing: Timing,
    *,
    now: float,
    trainer: str,
) -> StepRecord:
    """The record of the step that ``ledger`` has just committed."""
    outcome = facts.outcome
    staleness: Counter[int] = Counter()
    for group, behind in zip(facts.groups, facts.staleness, strict=True):
        staleness[behind] += len(group.samples)
    domains = by_domain(facts)
    return StepRecord(
        job_id=job_id,
        step=ledger.step,
        phase=facts.phase,
        phase_name=phase.name,
        algorithm=phase.algorithm.name,
        version=ledger.version,
        group_ids=[group.group_id for group in facts.groups],
        samples=sum(sample.valid for sample in facts.samples),
        masked=Counter(sample.reason for sample in facts.samples if not sample.valid),
        action_tokens=outcome.tokens,
        total_tokens=outcome.total_tokens,
        metrics={name: value for name, value in outcome.metrics.items() if math.isfinite(value)},
        domain_reward=_mean_by_domain(facts.samples, [sample.reward for sample in facts.samples]),
        domain_solved=_mean_by_domain(facts.samples, _solved(facts.groups)),
        domain_samples=Counter(sample.domain for sample in facts.samples if sample.valid),
        staleness=staleness,
        domain_masked=domains.masked,
        domain_flat=domains.flat,
        domain_staleness=domains.staleness,
        wait_s=timing.wait,
        data_s=timing.data,
        compute_s=timing.compute,
        publish_s=timing.publish,
        finished_at=timestamp(now),
        skipped=bool(outcome.skipped),
        skip_reason=outcome.skipped,
        trainer=trainer,
        restored_step=facts.restored,
        rollbacks=ledger.rollbacks,
    )


def _solved(groups: Sequence[GroupRecord]) -> list[float]:
    return [float(summary.solved) for group in groups for summary in group.samples]


def _mean_by_domain(samples: Sequence[Sample], values: Sequence[float]) -> Mapping[str, float]:
    """Mean over valid samples with a finite value."""
    by_domain: defaultdict[str, list[float]] = defaultdict(list)
    for sample, value in zip(samples, values, strict=True):
        if sample.valid and math.isfinite(value):
            by_domain[sample.domain].append(value)
    return {domain: sum(found) / len(found) for domain, found in by_domain.items()}


@dataclass(slots=True)
class Standing:
    """What a PolicyRecord says beyond the ledger; kept by the session, saved in its snapshots."""

    manifest: BlobRef
    """The published version."""
    state: TrainingState = TrainingState.TRAINING_STATE_RUNNING
    message: str = ""
    group_ids: Sequence[str] = ()
    """Groups of the last step."""
    reward_model: BlobRef | None = None
    """The reward model, once a phase has trained one."""
    idle_share: float = 0.0
    trained_tokens: int = 0
    recoveries: int = 0
    restored: int | None = None
    """A rollback in the place of the last step: number of the step whose state it restored."""
    diagnostics: Mapping[str, float] = field(default_factory=dict[str, float])
    """Of the last step (`diagnostics.of_step`)."""
    swap_policy: str = ""
    """What workers do to running sequences when they take the version."""


def policy_record(
    job_id: str, ledger: Ledger, standing: Standing, *, now: float, fence: int, trainer: str
) -> PolicyRecord:
    """The job's last value."""
    return PolicyRecord(
        job_id=job_id,
        version=ledger.version,
        step=ledger.step,
        phase=min(ledger.phase, len(ledger.phases) - 1),
        phase_step=ledger.phase_step,
        manifest=standing.manifest,
        reward_model=standing.reward_model,
        settled=[IndexRange(first=first, last=last) for first, last in ledger.settled],
        consumed_groups=ledger.consumed,
        dropped_groups=ledger.dropped,
        step_group_ids=standing.group_ids,
        state=standing.state,
        message=standing.message,
        idle_share=standing.idle_share,
        published_at=timestamp(now),
        fence=fence,
        trained_tokens=standing.trained_tokens,
        trainer=trainer,
        recoveries=standing.recoveries,
        swap_policy=standing.swap_policy,
        rollbacks=ledger.rollbacks,
        line_start=ledger.line_start,
        restored_step=standing.restored,
        diagnostics=standing.diagnostics,
    )
