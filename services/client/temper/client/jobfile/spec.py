"""A checked job file and the references of its uploaded files, as a `JobSpec`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from temper.api.common.v1 import common_pb2
from temper.api.job.v1 import spec_pb2
from temper.client.jobfile.model import Domain, JobFile, Phase, RandomPolicy
from temper.client.jobfile.policy import policy_files, vocabulary_problems
from temper.client.jobfile.problems import JobFileRejected

Files = Mapping[str, common_pb2.BlobRef]
"""File name -> where its bytes lie in the object store."""


@dataclass(frozen=True, slots=True)
class PolicySource:
    """What has to be uploaded before a job can be created."""

    files: dict[str, Path]
    """File name -> path on this machine; empty for a policy of another job."""
    label: str
    """Where the policy comes from, for people."""


def policy_source(job: JobFile, base: Path, source: str = "job") -> PolicySource:
    """Files of the policy, relative to `base` (the job file's directory). Raises JobFileRejected."""
    if job.policy.from_job is not None:
        return PolicySource({}, f"job {job.policy.from_job}")
    weights = job.policy.random is None
    directory = job.policy.random.files if job.policy.random else job.policy.checkpoint or ""
    field = "policy.checkpoint" if weights else "policy.random.files"
    files, problems = policy_files(base / directory, field, weights=weights)
    if not problems:
        size = job.policy.random.vocab_size if job.policy.random else None
        where = "policy.random.vocab_size" if job.policy.random else field
        problems = vocabulary_problems(files, where, vocab_size=size)
    if problems:
        raise JobFileRejected(source, problems)
    return PolicySource(files, directory)


def teacher_sources(job: JobFile, base: Path, source: str = "job") -> dict[int, PolicySource]:
    """Files of the teachers by the index of their phase. Raises JobFileRejected."""
    found: dict[int, PolicySource] = {}
    for index, phase in enumerate(job.phase):
        if phase.teacher is None:
            continue
        files, problems = policy_files(base / phase.teacher, f"phase[{index}].teacher", weights=True)
        if problems:
            raise JobFileRejected(source, problems)
        found[index] = PolicySource(files, phase.teacher)
    return found


def to_spec(
    job: JobFile, files: Files, label: str, teachers: Mapping[int, Files] = MappingProxyType({})
) -> spec_pb2.JobSpec:
    """The job as the server takes it. `files` are the policy's, `label` says where they are from."""
    return spec_pb2.JobSpec(
        name=job.name,
        seed=job.seed,
        policy=_policy(job, files, label),
        domains=[_domain(each) for each in job.domain],
        phases=[_phase(each, teachers.get(index)) for index, each in enumerate(job.phase)],
        eval=spec_pb2.EvalSpec(**job.eval.model_dump()),
        rollout=spec_pb2.RolloutSpec(**job.rollout.model_dump()),
        labels=job.labels,
        mix=spec_pb2.MixSpec(**job.mix.model_dump()),
        accept=spec_pb2.AcceptSpec(**job.accept.model_dump()),
        gates=spec_pb2.GateSpec(**job.gates.model_dump(exclude_none=True)),
        trainer=spec_pb2.TrainerSpec(**job.trainer.model_dump()),
    )


def file_path(spec_path: str) -> str:
    """A field path of the server in the words of the job file: `spec.phases[0].steps` -> `phase[0].steps`."""
    path = spec_path.removeprefix("spec.")
    path = path.replace("phases[", "phase[").replace("domains[", "domain[")
    return (
        path.replace("params_json", "params")
        .replace("algorithm_params", "params")
        .replace("algorithm_choices", "params")
    )


def _policy(job: JobFile, files: Files, label: str) -> spec_pb2.PolicySpec:
    if job.policy.random:
        return spec_pb2.PolicySpec(random=_shape(job.policy.random, files))
    return spec_pb2.PolicySpec(checkpoint=spec_pb2.CheckpointRef(files=files, source=label))


def _shape(shape: RandomPolicy, files: Files) -> spec_pb2.ModelSpec:
    return spec_pb2.ModelSpec(**shape.model_dump(exclude={"files"}), files=files)


def _domain(domain: Domain) -> spec_pb2.DomainSpec:
    params = json.dumps(domain.params, sort_keys=True, separators=(",", ":")) if domain.params else ""
    return spec_pb2.DomainSpec(
        name=domain.name,
        env=domain.env,
        params_json=params,
        share=domain.share,
        curriculum=domain.curriculum,
        train_tasks=domain.train_tasks,
    )


def _phase(phase: Phase, teacher: Files | None) -> spec_pb2.PhaseSpec:
    demo = phase.demo
    samples = phase.samples_per_task or (1 if demo else 8)
    publish = phase.publish_every if phase.publish_every is not None else (0 if demo else 1)
    return spec_pb2.PhaseSpec(
        name=phase.name,
        algorithm=phase.algorithm,
        source=common_pb2.PURPOSE_DEMO if demo else common_pb2.PURPOSE_TRAIN,
        steps=phase.steps,
        groups_per_step=phase.groups_per_step,
        tasks_per_group=phase.tasks_per_group,
        samples_per_task=samples,
        max_staleness=phase.max_staleness,
        optimizer=spec_pb2.OptimizerSpec(**phase.optimizer.model_dump()),
        algorithm_params={key: value for key, value in phase.params.items() if not isinstance(value, str)},
        algorithm_choices={key: value for key, value in phase.params.items() if isinstance(value, str)},
        oracle_mix=[spec_pb2.OracleMix(until=mix.until, styles=mix.styles) for mix in phase.oracle_mix],
        publish_every=publish,
        snapshot_every=phase.snapshot_every,
        teacher=None
        if teacher is None
        else spec_pb2.CheckpointRef(files=teacher, source=phase.teacher or ""),
    )
