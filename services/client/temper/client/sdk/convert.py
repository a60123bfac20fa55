"""Protobuf in, frozen results out; and back for the few that travel both ways."""

from __future__ import annotations

from typing import Any, cast

from google.protobuf.json_format import MessageToDict
from google.protobuf.timestamp_pb2 import Timestamp

from temper.api.common.v1 import common_pb2
from temper.api.job.v1 import job_pb2, platform_pb2
from temper.api.qa.v1 import qa_pb2
from temper.api.sandbox.v1 import approval_pb2
from temper.api.telemetry.v1 import telemetry_pb2
from temper.client.sdk import types


def seconds(stamp: Timestamp) -> float | None:
    """Unix seconds; None for a stamp that was never set."""
    return stamp.seconds + stamp.nanos / 1e9 if stamp.seconds or stamp.nanos else None


def blob(ref: common_pb2.BlobRef) -> types.BlobRef:
    """A reference."""
    return types.BlobRef(ref.key, ref.sha256, ref.size)


def blob_proto(ref: types.BlobRef) -> common_pb2.BlobRef:
    """A reference, for a request."""
    return common_pb2.BlobRef(key=ref.key, sha256=ref.sha256, size=ref.size)


def progress(message: job_pb2.JobProgress) -> types.Progress:
    """Counters; names are those of the contract."""
    plain = (
        "phase", "phase_name", "step", "total_steps", "version", "groups_published", "groups_consumed",
        "groups_in_flight", "staleness", "tokens_per_s", "episodes_per_s", "sandboxes_in_use", "trainer_idle",
        "rollout_idle", "activity", "wall_s", "eval_done", "eval_total",
    )  # fmt: skip
    maps = ("groups_dropped", "domain_reward", "domain_solved", "domain_groups", "diagnostics")
    values: dict[str, Any] = {name: getattr(message, name) for name in plain}
    values |= {name: dict(getattr(message, name)) for name in maps}
    return types.Progress(eta_s=message.eta_s or None, **values)


def evaluation(message: job_pb2.EvalResult) -> types.Evaluation:
    """One domain at one point."""
    plain = (
        "point", "domain", "step", "min_version", "max_version", "n", "attempted", "solved", "pass_at_1",
        "low", "high", "mean_reward",
    )  # fmt: skip
    values: dict[str, Any] = {name: getattr(message, name) for name in plain}
    return types.Evaluation(pass_at_k=dict(message.pass_at_k), **values)


def gate(message: job_pb2.GateVerdict) -> types.GateVerdict:
    """A verdict with its checks."""
    plain = ("point", "step", "version", "verdict", "action", "message", "rollback")
    checks = tuple(_gate_check(each) for each in message.checks)
    return types.GateVerdict(checks=checks, **{name: getattr(message, name) for name in plain})


def _gate_check(message: job_pb2.GateCheck) -> types.GateCheck:
    plain = ("domain", "bound", "verdict", "value", "low", "high", "limit", "n", "reference", "message")
    values: dict[str, Any] = {name: getattr(message, name) for name in plain}
    return types.GateCheck(**values)


def promoted(message: platform_pb2.PromotedPolicy) -> types.PromotedPolicy:
    """A name with its history."""
    return types.PromotedPolicy(message.name, tuple(_promotion(each) for each in message.history))


def _promotion(message: platform_pb2.Promotion) -> types.Promotion:
    return types.Promotion(
        job_id=message.job_id,
        version=message.version,
        verdict=message.verdict,
        point=message.point,
        forced=message.forced,
        reason=message.reason,
        promoted_at=seconds(message.promoted_at),
        returns_to=message.returns_to if message.HasField("returns_to") else None,
        manifest=blob(message.manifest) if message.HasField("manifest") else None,
    )


def state(value: int) -> types.JobState:
    """`JOB_STATE_RUNNING` as `running`."""
    name = job_pb2.JobState.Name(cast("Any", value)).removeprefix("JOB_STATE_").lower()
    return cast("types.JobState", name)


def job(message: job_pb2.Job) -> types.Job:
    """A job; its specification in JSON form, names as in the contract."""
    return types.Job(
        id=message.id,
        name=message.spec.name,
        state=state(message.state),
        reason=message.reason,
        created_at=seconds(message.created_at),
        started_at=seconds(message.started_at),
        ended_at=seconds(message.ended_at),
        progress=progress(message.progress),
        evals=tuple(evaluation(each) for each in message.evals),
        gates=tuple(gate(each) for each in message.gates),
        spec=MessageToDict(message.spec, preserving_proto_field_name=True),
        etag=message.etag,
    )


def update(message: job_pb2.WatchJobResponse) -> types.Update | None:
    """One message of a watch; None for an event that this client does not know."""
    if message.HasField("snapshot"):
        return types.Update(message.cursor, job(message.snapshot))
    event = message.event
    match event.WhichOneof("event"):
        case "state":
            payload = types.StateChange(state(event.state.state), event.state.reason)
        case "progress":
            payload = progress(event.progress)
        case "eval":
            payload = evaluation(event.eval)
        case "gate":
            payload = gate(event.gate)
        case "notice":
            payload = types.Notice(event.notice.level, event.notice.code, event.notice.message)
        case _:
            return None
    return types.Update(message.cursor, payload, seconds(event.time))


def instance(message: platform_pb2.Presence) -> types.Instance:
    """A live process."""
    return types.Instance(
        service=message.service,
        instance=message.instance,
        state=message.state,
        version=message.version,
        host=message.host,
        pid=message.pid,
        started_at=seconds(message.started_at),
        seen_at=seconds(message.seen_at),
        status=dict(message.status),
    )


def dead_letter(message: platform_pb2.DeadLetter) -> types.DeadLetter:
    """A dead letter."""
    return types.DeadLetter(
        seq=message.seq,
        subject=message.subject,
        reason=message.reason,
        id=message.id,
        type=message.type,
        time=seconds(message.time),
        deliveries=message.deliveries,
        body_json=message.body_json,
    )


def policy(message: platform_pb2.Policy) -> types.Policy:
    """A policy."""
    return types.Policy(
        job_id=message.job_id,
        version=message.version,
        step=message.step,
        state=message.state,
        manifest=blob(message.manifest) if message.HasField("manifest") else None,
        published_at=seconds(message.published_at),
        reward_model=blob(message.reward_model) if message.HasField("reward_model") else None,
    )


def approval(message: approval_pb2.Approval) -> types.Approval:
    """A question to a person."""
    return types.Approval(
        approval_id=message.approval_id,
        kind=message.kind,
        state=approval_pb2.ApprovalState.Name(message.state).removeprefix("APPROVAL_STATE_").lower(),
        subject=message.subject_json,
        session_id=message.session_id,
        job_id=message.job_id,
        env=message.env,
        asked_at=seconds(message.asked_at),
        expires_at=seconds(message.expires_at),
        resolved_at=seconds(message.resolved_at) if message.HasField("resolved_at") else None,
        resolved_by=message.resolved_by,
        reason=message.reason,
    )


def environment(message: qa_pb2.EnvironmentRecord) -> types.Environment:
    """A variant with its newest report."""
    live = message.live
    return types.Environment(
        name=message.env.name,
        version=message.env.version,
        state=qa_pb2.EnvironmentState.Name(message.state).removeprefix("ENVIRONMENT_STATE_").lower(),
        digest=message.env.digest,
        params_json=message.env.params_json,
        description=message.description,
        domain=message.domain,
        owner=message.owner,
        licence=message.licence,
        reason=message.reason,
        checks=tuple(_check(each) for each in message.report.results),
        samples=live.n,
        solve_rate=live.solved / live.n if live.n else None,
    )


def _check(message: qa_pb2.CheckResult) -> types.Check:
    severity = qa_pb2.Severity.Name(message.severity).removeprefix("SEVERITY_").lower()
    return types.Check(message.id, severity, message.passed, message.evidence, message.wall_s)


def table(message: telemetry_pb2.QueryResponse) -> types.Table:
    """Rows, with whole numbers where the column's type says so (JSON knows only doubles)."""
    kinds = tuple(column.type for column in message.columns)
    rows = tuple(
        tuple(_cell(value, kind) for value, kind in zip(row, kinds, strict=True)) for row in message.rows
    )
    return types.Table(
        tuple(column.name for column in message.columns), kinds, rows, message.truncated, message.elapsed_s
    )


def _cell(value: Any, kind: str) -> Any:
    if "Int" in kind and not kind.startswith(("Array", "Map", "Tuple")):
        if isinstance(value, float) and value.is_integer():
            return int(value)
        if isinstance(value, str) and value.lstrip("-").isdigit():
            return int(value)  # 64-bit numbers may travel as text
        return value
    if hasattr(value, "DESCRIPTOR"):
        return MessageToDict(value)
    return value


def saved_query(message: telemetry_pb2.SavedQuery) -> types.SavedQuery:
    """A named query."""
    return types.SavedQuery(message.name, message.description, message.sql, dict(message.parameters))


def ingestion(message: telemetry_pb2.TopicIngestion) -> types.Ingestion:
    """Progress of one topic."""
    return types.Ingestion(message.topic, message.records, message.lag)
