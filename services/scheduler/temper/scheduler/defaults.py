"""What a job file may leave out. The effective specification is stored with the job and shown by GetJob.

A zero that means something in the contract (max_staleness, publish_every of demonstrations, eval.every, a temperature
of 0 for greedy evaluation) is left alone; everything else that is zero or empty gets its value here. A whole table
that is absent gets all of its defaults.
"""

from __future__ import annotations

from temper.api.common.v1.common_pb2 import Purpose
from temper.api.job.v1.spec_pb2 import EvalSpec, JobSpec, OptimizerSpec, PhaseSpec, RolloutSpec
from temper.scheduler import shares
from temper.scheduler.gates import settings as gates

EVAL_TASKS = 256  # held-out tasks per domain: a 95 % interval of about ±6 points at one half


def effective(spec: JobSpec) -> JobSpec:
    """A copy of `spec` with every default filled in; filling in again changes nothing."""
    filled = JobSpec()
    filled.CopyFrom(spec)
    for domain in filled.domains:
        domain.curriculum = domain.curriculum or "uniform"
    for phase in filled.phases:
        _phase(phase)
    if not filled.HasField("eval"):
        filled.eval.CopyFrom(EvalSpec(temperature=1.0, before=True, after=True))
    _evaluation(filled.eval)
    _rollout(filled.rollout)
    filled.trainer.engine = filled.trainer.engine or "torch"
    filled.accept.SetInParent()
    filled.gates.CopyFrom(gates.filled_in(filled.gates))
    filled.mix.CopyFrom(shares.filled_in(filled.mix))
    return filled


def _phase(phase: PhaseSpec) -> None:
    if phase.source == Purpose.PURPOSE_TRAIN:
        phase.publish_every = phase.publish_every or 1  # a policy that acts must be the one that was trained
    phase.snapshot_every = phase.snapshot_every or 5
    _optimizer(phase.optimizer)


def _optimizer(optimizer: OptimizerSpec) -> None:
    optimizer.schedule = optimizer.schedule or "constant"
    optimizer.beta1 = optimizer.beta1 or 0.9
    optimizer.beta2 = optimizer.beta2 or 0.99
    optimizer.max_grad_norm = optimizer.max_grad_norm or 1.0


def _evaluation(evaluation: EvalSpec) -> None:
    evaluation.tasks_per_domain = evaluation.tasks_per_domain or EVAL_TASKS
    evaluation.samples_per_task = evaluation.samples_per_task or 1


def _rollout(rollout: RolloutSpec) -> None:
    rollout.temperature = (
        rollout.temperature or 1.0
    )  # greedy sampling gives no two different samples to compare
    rollout.top_p = rollout.top_p or 1.0
    rollout.max_tokens_per_turn = rollout.max_tokens_per_turn or 64
    rollout.max_turns = rollout.max_turns or 4
    rollout.max_tokens = rollout.max_tokens or 512
    rollout.max_observation_bytes = rollout.max_observation_bytes or 256
    rollout.group_deadline_s = rollout.group_deadline_s or 60.0
    rollout.swap_policy = rollout.swap_policy or "keep"
