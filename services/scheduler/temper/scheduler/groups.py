"""A decision becomes a command: everything in it follows from the job, the index and the draw.

So a command that is built again after a crash is the same command, and a worker that runs it again gets the same
group: same id, same seed, same tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from google.protobuf.timestamp_pb2 import Timestamp

from temper.api.common.v1.common_pb2 import Purpose
from temper.api.job.v1.job_pb2 import Job
from temper.api.job.v1.spec_pb2 import DomainSpec, OracleMix, PhaseSpec, RolloutSpec
from temper.api.rollout.v1.rollout_pb2 import EpisodeLimits, GroupCommand, SamplingParams
from temper.scheduler.curriculum import fraction
from temper.scheduler.sampler import Draw, seed_of

TRAIN_SPLIT, HELDOUT_SPLIT = "train", "heldout"


def group_id(job_id: str, index: int) -> str:
    """Id of a training group: the idempotency key of all that it causes."""
    return f"{job_id}-{index}"


def timestamp(unix_s: float) -> Timestamp:
    """Unix seconds as a protobuf time."""
    stamp = Timestamp()
    stamp.FromNanoseconds(int(unix_s * 1e9))
    return stamp


def training_group(
    job: Job, *, index: int, phase: int, position: float, draw: Draw, version: int, fence: int, now: float
) -> GroupCommand:
    """Command number `index` of the job's stream; `position` in [0, 1] is how far the phase has come."""
    spec = job.spec.phases[phase]
    domain = _domain(job, draw.domain)
    command = GroupCommand(
        job_id=job.id,
        group_id=group_id(job.id, index),
        index=index,
        purpose=spec.source,
        phase=phase,
        domain=domain.name,
        env=domain.resolved,
        split=TRAIN_SPLIT,
        task_indices=draw.tasks,
        samples_per_task=spec.samples_per_task,
        seed=seed_of(job.spec.seed, "group", index),
        limits=limits(job.spec.rollout),
        fence=fence,
        published_at=timestamp(now),
    )
    if spec.source == Purpose.PURPOSE_DEMO:
        command.oracle_styles.extend(
            oracle_styles(spec, position, f"{job.spec.seed}/{index}", len(draw.tasks))
        )
    else:
        command.min_version = version
        command.max_staleness = spec.max_staleness
        command.sampling.CopyFrom(training_sampling(job.spec.rollout))
    return command


def evaluation_groups(
    job: Job, point: str, *, tasks: int, per_group: int, version: int, fence: int, now: float
) -> Iterator[GroupCommand]:
    """All groups of an evaluation point, domain by domain, `per_group` tasks each.

    Tasks and seeds depend on the job and the domain, not on the point: before and after are paired.
    """
    samples = job.spec.eval.samples_per_task
    sampling = SamplingParams(
        temperature=job.spec.eval.temperature,
        top_p=1.0,
        max_tokens_per_turn=job.spec.rollout.max_tokens_per_turn,
    )
    number = 0
    for chunk, first in enumerate(range(0, tasks, per_group)):
        for domain in job.spec.domains:
            yield GroupCommand(
                job_id=job.id,
                group_id=f"{job.id}-{point}-{domain.name}-{chunk}",
                index=number,
                purpose=Purpose.PURPOSE_EVAL,
                domain=domain.name,
                env=domain.resolved,
                split=HELDOUT_SPLIT,
                task_indices=range(first, min(first + per_group, tasks)),
                samples_per_task=samples,
                seed=seed_of(job.spec.seed, "eval", domain.name, chunk),
                min_version=version,
                sampling=sampling,
                limits=limits(job.spec.rollout),
                fence=fence,
                published_at=timestamp(now),
                eval_point=point,
            )
            number += 1


def chunk_of(evaluation_group_id: str) -> int:
    """The chunk's number within its point and domain."""
    return int(evaluation_group_id.rpartition("-")[2])


def limits(rollout: RolloutSpec) -> EpisodeLimits:
    """Budgets of an episode."""
    return EpisodeLimits(
        max_turns=rollout.max_turns,
        max_tokens=rollout.max_tokens,
        max_observation_bytes=rollout.max_observation_bytes,
        group_deadline_s=rollout.group_deadline_s,
    )


def training_sampling(rollout: RolloutSpec) -> SamplingParams:
    """How tokens are drawn in training."""
    return SamplingParams(
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        top_k=rollout.top_k,
        max_tokens_per_turn=rollout.max_tokens_per_turn,
    )


def oracle_styles(phase: PhaseSpec, position: float, key: str, count: int) -> list[str]:
    """A style for each of `count` tasks, by the weights of the mix that holds at `position`."""
    mix = _mix_at(phase.oracle_mix, position)
    styles = sorted(mix.styles)
    total = sum(mix.styles[style] for style in styles)
    return [_pick(styles, mix, fraction(f"{key}/style/{number}") * total) for number in range(count)]


def _mix_at(mixes: Sequence[OracleMix], position: float) -> OracleMix:
    return next((mix for mix in mixes if position < mix.until), mixes[-1])


def _pick(styles: list[str], mix: OracleMix, mark: float) -> str:
    for style in styles:
        mark -= mix.styles[style]
        if mark < 0:
            return style
    return next(style for style in reversed(styles) if mix.styles[style] > 0)


def _domain(job: Job, name: str) -> DomainSpec:
    return next(domain for domain in job.spec.domains if domain.name == name)
