"""Facts for tests: records of every topic, as they lie in the log."""

from __future__ import annotations

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from temper.api.common.v1 import common_pb2 as common
from temper.api.common.v1.common_pb2 import BlobRef, EnvRef
from temper.api.job.v1.job_pb2 import (
    JOB_STATE_RUNNING,
    EvalResult,
    GateVerdict,
    JobEvent,
    Notice,
    StateChanged,
)
from temper.api.qa.v1.qa_pb2 import CheckReport, CheckResult, EnvironmentRecord, VerdictRecord
from temper.api.rollout.v1.rollout_pb2 import GroupRecord, SampleSummary, ToolUse
from temper.api.sandbox.v1.sandbox_pb2 import SessionRecord
from temper.api.trainer.v1.trainer_pb2 import StepRecord
from temper.runtime.log.base import LogRecord, Token

ENV = EnvRef(name="calc", version="1.0.0", digest="d" * 64)
TIME = Timestamp(seconds=1_700_000_000, nanos=123_456_789)


def sample(**given: object) -> SampleSummary:
    """A solved sample, with changes."""
    values: dict[str, object] = {
        "task_index": 4,
        "sample_index": 1,
        "sample_class": common.SAMPLE_CLASS_SCORED,
        "reward": 1.0,
        "solved": True,
        "action_tokens": 12,
        "total_tokens": 40,
        "turns": 2,
        "tools": [ToolUse(name="python", outcome="ok", wall_s=0.01)],
        "finish_reason": common.FINISH_REASON_STOP,
        "min_version": 2,
        "max_version": 3,
        "sandbox_host": "h1",
    }
    return SampleSummary(**{**values, **given})  # type: ignore[arg-type]  # fields of the message


def group(number: int = 0, job: str = "job-1", samples: list[SampleSummary] | None = None) -> GroupRecord:
    """A finished training group."""
    return GroupRecord(
        job_id=job,
        group_id=f"{job}-{number}",
        index=number,
        purpose=common.PURPOSE_TRAIN,
        domain="calc",
        env=ENV,
        split="train",
        samples=[sample(), sample(sample_index=2, reward=0.0, solved=False)] if samples is None else samples,
        table=BlobRef(key="groups/x", sha256="0" * 64, size=99),
        worker="w1",
        attempt=1,
        seed=2**64 - 1,
        finished_at=TIME,
    )


def step(number: int = 1, job: str = "job-1", groups: tuple[int, ...] = (0,)) -> StepRecord:
    """An optimizer step on some groups."""
    return StepRecord(
        job_id=job,
        step=number,
        phase_name="rl",
        algorithm="grpo",
        version=number,
        group_ids=[f"{job}-{each}" for each in groups],
        samples=2,
        metrics={"loss": 0.5},
        domain_reward={"calc": 0.5},
        domain_solved={"calc": 0.5},
        domain_samples={"calc": 2},
        staleness={0: 1, 1: 1},
        wait_s=1.0,
        compute_s=3.0,
        finished_at=TIME,
    )


def events(job: str = "job-1") -> list[JobEvent]:
    """A state, an evaluation and a notice."""
    found = EvalResult(point="before", domain="calc", n=256, attempted=256, solved=80, pass_at_1=0.3125)
    return [
        JobEvent(job_id=job, time=TIME, state=StateChanged(state=JOB_STATE_RUNNING, reason="go")),
        JobEvent(job_id=job, time=TIME, eval=found),
        JobEvent(job_id=job, time=TIME, notice=Notice(level="warning", code="recovered", message="again")),
    ]


def gate(job: str = "job-1") -> JobEvent:
    """A gate that sends training back because one of two domains fell."""
    said = GateVerdict(
        point="step-20",
        step=20,
        version=21,
        verdict="fail",
        action="rollback",
        message="calc fell",
        rollback=1,
    )
    said.checks.add(
        domain="calc", bound="max_drop", verdict="fail", value=-0.5, low=-0.7, high=-0.3, limit=-0.1, n=48
    )
    said.checks.add(
        domain="sums", bound="max_drop", verdict="pass", value=0.1, limit=-0.1, n=48, reference="before"
    )
    return JobEvent(job_id=job, time=TIME, gate=said)


def verdict() -> VerdictRecord:
    """A refusal."""
    result = CheckResult(id="semantic.floor_gap", passed=False, evidence="earns 0.05")
    report = CheckReport(digest=ENV.digest, checker="1", backend="namespaces", results=[result])
    record = EnvironmentRecord(env=ENV, domain="math", reason="semantic.floor_gap", report=report)
    return VerdictRecord(environment=record, verdict="rejected", time=TIME)


def session(number: int = 0, job: str = "job-1") -> SessionRecord:
    """A finished sandbox session."""
    return SessionRecord(
        session_id=f"s{number}",
        job_id=job,
        host="h1",
        backend="namespaces",
        env="calc@1.0.0",
        commands=2,
        slowest_s=float(number),
        limit_hits={"TIMED_OUT": 1},
        end="finished",
        acquired_at=TIME,
        released_at=TIME,
    )


def logged(topic: str, message: Message, *, id: str = "r1", place: int = 1, time: float = 1.7e9) -> LogRecord:  # noqa: A002 - the log's word
    """`message` as the log gives it back."""
    name = message.DESCRIPTOR.full_name
    return LogRecord(topic, "job-1", Token(str(place)), id, name, message.SerializeToString(), time)
