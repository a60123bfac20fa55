"""Log record -> rows: pure functions, one per topic. `proto/clickhouse/tables.sql` holds the same columns in the same order.

A row's key makes it idempotent, `rank` says which of two rows with one key stays: the first record of a group (as for the
trainer), the last one of everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from temper.api.common.v1 import common_pb2 as common
from temper.api.job.v1.job_pb2 import GateCheck, JobEvent, JobState
from temper.api.qa.v1.qa_pb2 import VerdictRecord
from temper.api.rollout.v1.rollout_pb2 import GroupRecord, SampleSummary
from temper.api.sandbox.v1.sandbox_pb2 import SessionRecord
from temper.api.trainer.v1.trainer_pb2 import StepRecord
from temper.runtime.log.base import LogRecord
from temper.telemetry.columns import COLUMNS

Row = tuple[Any, ...]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST_RANK = 2**63  # microseconds since 1970 stay below it for 290,000 years


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one table. Example: `Batch("steps", ("job_id", …), [("job-1", …)])`."""

    table: str
    """Table."""
    columns: tuple[str, ...]
    """Names in the order of each row."""
    rows: list[Row]
    """Values."""


Rows = Iterable[tuple[str, Row]]


def batches(records: Iterable[LogRecord]) -> list[Batch]:
    """All rows of some records, one batch per table. Raises Rejected for a record of another type than its topic's."""
    gathered: dict[str, list[Row]] = {}
    for record in records:
        for table, row in TOPICS[record.topic](record):
            gathered.setdefault(table, []).append(row)
    return [Batch(table, COLUMNS[table], rows) for table, rows in gathered.items()]


def positions(tokens: Mapping[str, str], now: float) -> Batch:
    """The rows that say how far each topic was read, at unix time `now`."""
    rank = last_wins(now)
    return Batch("ingestion", COLUMNS["ingestion"], [(topic, token, rank) for topic, token in tokens.items()])


def first_wins(seconds: float) -> int:
    """Rank of a record written at unix time `seconds` when the earliest counts."""
    return LAST_RANK - last_wins(seconds)


def last_wins(seconds: float) -> int:
    """Rank of a record written at unix time `seconds` when the latest counts."""
    return int(seconds * 1e6)


def trajectory(record: LogRecord) -> Rows:
    """Topic `trajectories`: a group, its samples, their tool calls."""
    group, rank = record.message(GroupRecord), first_wins(record.time)
    finished = instant(group.finished_at)
    yield (
        "groups",
        (
            group.job_id,
            group.group_id,
            group.index,
            name(common.Purpose, group.purpose),
            group.phase,
            group.domain,
            group.env.name,
            group.env.version,
            group.env.digest,
            group.split,
            group.eval_point,
            name(common.DropReason, group.drop_reason),
            group.worker,
            group.engine,
            group.attempt,
            group.seed,
            len(group.samples),
            group.samples_per_task,
            group.table.key,
            group.table.size,
            group.table.sha256,
            group.swap_policy,
            group.engine_identity.numeric,
            group.engine_identity.batch_invariant,
            instant(group.published_at),
            instant(group.started_at),
            finished,
            rank,
        ),
    )
    for place, sample in enumerate(group.samples):
        yield "samples", _sample(group, place, sample, finished, rank)
        for call, use in enumerate(sample.tools):
            yield (
                "tool_uses",
                (
                    group.job_id,
                    group.group_id,
                    place,
                    call,
                    group.domain,
                    group.env.name,
                    use.name,
                    use.outcome,
                    use.wall_s,
                    sample.sandbox_host,
                    finished,
                    rank,
                ),
            )


def _sample(group: GroupRecord, place: int, sample: SampleSummary, finished: datetime, rank: int) -> Row:
    return (
        group.job_id,
        group.group_id,
        place,
        group.index,
        name(common.Purpose, group.purpose),
        group.phase,
        group.domain,
        group.env.name,
        group.env.version,
        group.env.digest,
        group.split,
        group.eval_point,
        sample.task_index,
        sample.sample_index,
        name(common.SampleClass, sample.sample_class),
        sample.reward if sample.HasField("reward") else None,
        sample.solved,
        sample.prompt_tokens,
        sample.action_tokens,
        sample.total_tokens,
        sample.turns,
        len(sample.tools),
        name(common.FinishReason, sample.finish_reason),
        sample.min_version,
        sample.max_version,
        sample.wall_s,
        sample.sandbox_s,
        sample.sandbox_host,
        sample.detail,
        sample.kv_origin_lag,
        sample.cached_tokens,
        sample.stop_token if sample.HasField("stop_token") else None,
        sample.attention,
        sample.for_training or not sample.HasField("for_training"),
        sample.resumed_tokens,
        sample.restarts,
        finished,
        rank,
    )


def step(record: LogRecord) -> Rows:
    """Topic `steps`."""
    done = record.message(StepRecord)
    yield (
        "steps",
        (
            done.job_id,
            done.step,
            done.phase,
            done.phase_name,
            done.algorithm,
            done.version,
            list(done.group_ids),
            done.samples,
            dict(done.masked),
            done.action_tokens,
            done.total_tokens,
            dict(done.metrics),
            dict(done.domain_reward),
            dict(done.domain_solved),
            dict(done.domain_samples),
            dict(done.domain_masked),
            dict(done.domain_flat),
            dict(done.domain_staleness),
            dict(done.staleness),
            done.wait_s,
            done.data_s,
            done.compute_s,
            done.publish_s,
            done.skipped,
            done.skip_reason,
            done.restored_step if done.HasField("restored_step") else None,
            done.trainer,
            instant(done.finished_at),
            last_wins(record.time),
        ),
    )


def job_event(record: LogRecord) -> Rows:
    """Topic `jobs`: every event, a row of its own for an evaluation, and one for each check of a gate."""
    event, rank = record.message(JobEvent), last_wins(record.time)
    kind = event.WhichOneof("event") or ""
    state = name(JobState, event.state.state) if kind == "state" else ""
    level, code, message = _words(event, kind)
    time = instant(event.time)
    yield (
        "job_events",
        (
            event.job_id,
            record.id,
            kind,
            state,
            level,
            code,
            message,
            time,
            rank,
        ),
    )
    if kind == "eval":
        found = event.eval
        yield (
            "evals",
            (
                event.job_id,
                found.point,
                found.domain,
                found.step,
                found.min_version,
                found.max_version,
                found.n,
                found.attempted,
                found.solved,
                found.pass_at_1,
                found.low,
                found.high,
                found.mean_reward,
                dict(found.pass_at_k),
                time,
                rank,
            ),
        )

    for row in _checks(event, time, rank):
        yield "gates", row


def _words(event: JobEvent, kind: str) -> tuple[str, str, str]:
    """(level, code, message) of an event for people."""
    if kind == "state":
        return "", "", event.state.reason
    if kind == "gate":
        said = event.gate
        action = f", {said.action}" if said.action else ""
        text = f"gate {said.point} {said.verdict.replace('_', ' ')}{action}: {said.message}"
        return ("info" if said.verdict == "pass" else "warning"), f"gate_{said.verdict}", text
    return event.notice.level, event.notice.code, event.notice.message


def _checks(event: JobEvent, time: datetime, rank: int) -> Iterable[Row]:
    """A row for each bound that a gate looked at; one without domain for a verdict that looked at none."""
    said = event.gate
    for check in said.checks or ([GateCheck()] if event.HasField("gate") else []):
        yield (
            event.job_id,
            said.point,
            check.domain,
            check.bound,
            said.step,
            said.version,
            said.verdict,
            check.verdict,
            said.action,
            check.value,
            check.low,
            check.high,
            check.limit,
            check.n,
            check.reference,
            check.message or said.message,
            said.rollback,
            time,
            rank,
        )


def verdict(record: LogRecord) -> Rows:
    """Topic `verdicts`."""
    given = record.message(VerdictRecord)
    environment, report = given.environment, given.environment.report
    yield (
        "verdicts",
        (
            environment.env.name,
            environment.env.version,
            environment.env.digest,
            record.id,
            given.verdict,
            environment.reason,
            environment.domain,
            environment.env.params_json,
            report.checker,
            report.backend,
            {result.id: result.passed for result in report.results},
            {result.id: result.evidence for result in report.results},
            instant(given.time),
            last_wins(record.time),
        ),
    )


def session(record: LogRecord) -> Rows:
    """Topic `sandbox`."""
    ended = record.message(SessionRecord)
    yield (
        "sandbox_sessions",
        (
            ended.job_id,
            ended.session_id,
            ended.host,
            ended.backend,
            ended.env,
            instant(ended.acquired_at),
            instant(ended.released_at),
            ended.commands,
            ended.cpu_s,
            ended.peak_memory_bytes,
            dict(ended.limit_hits),
            ended.end,
            ended.create_s,
            ended.slowest_s,
            last_wins(record.time),
        ),
    )


TOPICS: dict[str, Callable[[LogRecord], Rows]] = {
    "trajectories": trajectory,
    "steps": step,
    "jobs": job_event,
    "verdicts": verdict,
    "sandbox": session,
}


def instant(stamp: Timestamp) -> datetime:
    """A protobuf timestamp with microseconds; 1970 when it is not set."""
    return EPOCH + timedelta(seconds=stamp.seconds, microseconds=stamp.nanos // 1000)


def name(enum: Any, value: int) -> str:
    """`SAMPLE_CLASS_AGENT_FAILED` as `agent_failed`; empty for the unspecified value, the number for one yet unknown."""
    if value not in enum.values():
        return str(value)
    prefix = enum.Name(0).removesuffix("UNSPECIFIED")
    return "" if value == 0 else enum.Name(value).removeprefix(prefix).lower()
