"""Jobs for the scheduler's tests, and scripted peers: a trainer and rollout workers without a network."""

from __future__ import annotations

from google.protobuf.json_format import ParseDict

from temper.api.common.v1.common_pb2 import EnvRef, IndexRange, Purpose, SampleClass
from temper.api.job.v1.job_pb2 import Job, JobState
from temper.api.job.v1.spec_pb2 import JobSpec, PhaseSpec
from temper.api.rollout.v1.rollout_pb2 import GroupCommand, GroupRecord, SampleSummary
from temper.api.trainer.v1.trainer_pb2 import PolicyRecord, TrainingState

DIGEST = "0" * 64


def spec(**changes: object) -> JobSpec:
    """A small valid job: two domains, one policy phase; `changes` replace top-level fields (JSON form)."""
    base: dict[str, object] = {
        "name": "quickstart",
        "seed": 7,
        "policy": {"checkpoint": {"files": {name: blob(name) for name in CHECKPOINT}, "source": "warm"}},
        "domains": [
            {"name": "calc", "env": "calc", "share": 1, "curriculum": "uniform"},
            {
                "name": "sums",
                "env": "rg/chain_sum",
                "share": 3,
                "curriculum": "success_window",
                "trainTasks": 50,
            },
        ],
        "phases": [policy_phase()],
        "eval": {"tasksPerDomain": 6, "before": True, "after": True, "temperature": 1, "samplesPerTask": 1},
        "rollout": {
            "temperature": 1,
            "topP": 1,
            "maxTokensPerTurn": 32,
            "maxTurns": 3,
            "maxTokens": 128,
            "maxObservationBytes": 64,
            "groupDeadlineS": 30,
        },
        "trainer": {"engine": "torch"},
    }
    return ParseDict({**base, **changes}, JobSpec())


CHECKPOINT = ("config.json", "model.safetensors", "tokenizer.json", "temper_chat.json")


def blob(name: str) -> dict[str, object]:
    return {"key": f"uploads/{name}", "sha256": DIGEST, "size": 10}


def policy_phase(**changes: object) -> dict[str, object]:
    return {
        "name": "rl",
        "algorithm": "grpo",
        "source": "PURPOSE_TRAIN",
        "steps": 4,
        "groupsPerStep": 3,
        "tasksPerGroup": 1,
        "samplesPerTask": 4,
        "maxStaleness": 1,
        "optimizer": {"lr": 1e-3, "schedule": "constant"},
        "publishEvery": 1,
        "snapshotEvery": 5,
        **changes,
    }


def demo_phase(**changes: object) -> dict[str, object]:
    return {
        **policy_phase(),
        "name": "warm",
        "algorithm": "sft",
        "source": "PURPOSE_DEMO",
        "tasksPerGroup": 4,
        "samplesPerTask": 1,
        "oracleMix": [
            {"until": 0.5, "styles": {"tool": 1}},
            {"until": 1.0, "styles": {"direct": 1, "tool": 1}},
        ],
        "publishEvery": 0,
        **changes,
    }


def env(name: str) -> EnvRef:
    return ParseDict(
        {
            "name": name,
            "version": "1.0.0",
            "digest": DIGEST,
            "bundle": {"key": "b", "sha256": DIGEST, "size": 1},
        },
        EnvRef(),
    )


def job(state: JobState = JobState.JOB_STATE_PENDING, *, resolved: bool = False, **changes: object) -> Job:
    made = Job(id="quickstart-7f3a", spec=spec(**changes), state=state)
    if resolved:
        for domain in made.spec.domains:
            domain.resolved.CopyFrom(env(domain.env))
    return made


def record_of(command: GroupCommand, *, solved: bool = True, **changes: object) -> GroupRecord:
    """What a worker appends for `command`."""
    record = GroupRecord(
        job_id=command.job_id,
        group_id=command.group_id,
        index=command.index,
        purpose=command.purpose,
        phase=command.phase,
        domain=command.domain,
        env=command.env,
        split=command.split,
        eval_point=command.eval_point,
        seed=command.seed,
        samples_per_task=command.samples_per_task,
        worker="rollout-1",
        attempt=1,
    )
    for task in command.task_indices:
        for number in range(command.samples_per_task):
            record.samples.append(
                SampleSummary(
                    task_index=task,
                    sample_index=number,
                    sample_class=SampleClass.SAMPLE_CLASS_SCORED,
                    reward=float(solved),
                    solved=solved,
                    action_tokens=10,
                    total_tokens=20,
                    min_version=command.min_version,
                    max_version=command.min_version,
                )
            )
    for name, value in changes.items():
        setattr(record, name, value)
    return record


class ScriptedTrainer:
    """Consumes groups in index order, as the trainer does; `record` is its last publication."""

    def __init__(self, phases: list[PhaseSpec], job_id: str) -> None:
        self.phases = phases
        self.record = PolicyRecord(job_id=job_id, state=TrainingState.TRAINING_STATE_RUNNING)
        self._buffer: dict[int, GroupRecord] = {}
        self._settled: set[int] = set()
        self.trained: list[int] = []

    def offer(self, group: GroupRecord) -> None:
        if group.purpose == Purpose.PURPOSE_EVAL or group.index in self._settled:
            return
        self._buffer.setdefault(group.index, group)

    def step(self) -> bool:
        """Drop what cannot be used, then take one optimizer step if there is enough; True if anything moved."""
        if self.record.state != TrainingState.TRAINING_STATE_RUNNING:
            return False
        if self.record.step == sum(phase.steps for phase in self.phases):
            self.record.state = TrainingState.TRAINING_STATE_FINISHED
            return True
        phase = self.phases[self.record.phase]
        moved = self._drop(phase)
        ready = sorted(self._buffer)[: phase.groups_per_step]
        if len(ready) == phase.groups_per_step:
            self._consume(ready, phase)
            moved = True
        if moved:
            self._publish()
        return moved

    def _drop(self, phase: PhaseSpec) -> bool:
        moved = False
        for index, group in sorted(self._buffer.items()):
            reason = ""
            if group.drop_reason:
                reason = "DROP_REASON_POISON"
            elif group.phase != self.record.phase:
                reason = "DROP_REASON_LATE"
            elif group.purpose == Purpose.PURPOSE_TRAIN:
                oldest = min(sample.min_version for sample in group.samples)
                reason = "DROP_REASON_STALE" if self.record.version - oldest > phase.max_staleness else ""
            if reason:
                del self._buffer[index]
                self._settled.add(index)
                self.record.dropped_groups[reason] += 1
                moved = True
        return moved

    def _consume(self, ready: list[int], phase: PhaseSpec) -> None:
        record = self.record
        for index in ready:
            del self._buffer[index]
            assert index not in self.trained, "a group trained twice"
            self.trained.append(index)
            self._settled.add(index)
        record.consumed_groups += len(ready)
        record.step += 1
        record.phase_step += 1
        last = record.phase_step == phase.steps
        if last or (phase.publish_every and record.phase_step % phase.publish_every == 0):
            record.version += 1
        if last:  # the last phase stays the last one, as in the real trainer's record
            record.phase, record.phase_step = min(record.phase + 1, len(self.phases) - 1), 0

    def _publish(self) -> None:
        del self.record.settled[:]
        self.record.settled.extend(IndexRange(first=index, last=index) for index in sorted(self._settled))

    def published(self) -> PolicyRecord:
        copy = PolicyRecord()
        copy.CopyFrom(self.record)
        return copy
