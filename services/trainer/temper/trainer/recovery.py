"""Where training goes on: the newest snapshot that can be used, and the steps that were announced after it.

Announced means: the policy record says so. Those steps are made again from the same groups before anything new is tried, which gives the
same versions bit for bit. The record itself names the groups of its last step, the step log those of the steps before: a record in the
log of a step that no policy record ever named is that of a trainer which lost the race, and counts for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from temper.api.trainer.v1.trainer_pb2 import PolicyRecord, StepRecord
from temper.runtime.errors import Rejected
from temper.runtime.log.base import EventLog, LogRecord, Token
from temper.trainer.levels import Accept, Level, newest
from temper.trainer.patience import Patience
from temper.trainer.snapshot import Snapshot
from temper.trainer.state import Ledger, Phase

STEPS = "steps"


@dataclass(slots=True)
class Recovered:
    """The point to go on from."""

    ledger: Ledger
    """With the announced steps in its redo list."""
    facts: Mapping[str, Any]
    """The snapshot's; empty without one."""
    restored: bool = False
    """Whether a snapshot was taken up; if not, begin with the initial policy."""
    level: str = ""
    """Where the snapshot was."""
    steps_token: str = ""
    """Position of the last own record in log topic ``steps``."""
    announced: Mapping[int, Mapping[str, float]] = field(default_factory=dict[int, Mapping[str, float]])
    """Metrics of the steps to be made again, by step."""
    restorations: Mapping[int, Restoration] = field(default_factory=dict[int, "Restoration"])
    """Steps to be made again that were rollbacks."""
    problems: list[str] = field(default_factory=list[str])
    """What was passed over or is missing."""


@dataclass(frozen=True, slots=True)
class Restoration:
    """A rollback that was announced. Example: ``Restoration(step=40, rollbacks=1)``."""

    step: int
    """Whose state was restored."""
    rollbacks: int
    """With this one."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a snapshot has to fit."""

    job_id: str
    phases: Sequence[Phase]
    config: Mapping[str, Any]
    """The model's ``config.json``."""
    record: PolicyRecord | None
    """The last that was announced."""


async def recover(
    places: Sequence[Level], accept: Accept, log: EventLog, job: Job, patience: Patience
) -> Recovered:
    """Find the point; ``accept`` puts a snapshot into the engine. Raises Unavailable when the stores stay away."""

    async def take_up(snapshot: Snapshot) -> None:
        check(snapshot, job)
        await accept(snapshot)

    found = await patience(lambda: newest(places, take_up), "snapshots")
    if found.snapshot is None:
        out = Recovered(Ledger(job.phases), {}, problems=found.problems)
    else:
        facts = found.snapshot.facts
        ledger = Ledger.from_facts(job.phases, facts["ledger"])
        out = Recovered(ledger, facts, True, found.level, str(facts["steps_token"]), problems=found.problems)
    await _announce(log, job, out, patience)
    return out


def check(snapshot: Snapshot, job: Job) -> None:
    """Raise Rejected for a snapshot of another model, or of a future that was never announced."""
    theirs, ours = dict(snapshot.config), dict(job.config)
    other = sorted(key for key in theirs.keys() | ours.keys() if theirs.get(key) != ours.get(key))
    if other:
        said = ", ".join(f"{key} {theirs.get(key)!r} for {ours.get(key)!r}" for key in other[:3])
        raise Rejected(f"it is of another model: {said}", field="config", hint="it belongs to another job")
    if job.record is not None and snapshot.step > job.record.step:
        raise Rejected(
            f"it is ahead of the job, whose last announced step is {job.record.step}",
            field="step",
            hint="it was never announced, or the policy record is an old one",
        )


async def _announce(log: EventLog, job: Job, out: Recovered, patience: Patience) -> None:
    """Tell the ledger which steps were announced after its own, and which groups were settled by then."""
    steps = await _recorded(log, job.job_id, out, patience)
    redo: list[Sequence[str]] = []
    while (number := out.ledger.step + len(redo) + 1) in steps or _is_last(job.record, number):
        if job.record is not None and number > job.record.step:
            break
        last = _is_last(job.record, number)
        redo.append(tuple(job.record.step_group_ids) if last and job.record else steps[number].group_ids)
    out.ledger.redo(redo)
    out.announced = {
        number: dict(step.metrics)
        for number, step in steps.items()
        if step.step <= out.ledger.step + len(redo)
    }
    out.restorations = {
        number: Restoration(step.restored_step, step.rollbacks)
        for number, step in steps.items()
        if step.HasField("restored_step")
    }
    if job.record is None:
        return
    if job.record.HasField("restored_step"):
        last = Restoration(job.record.restored_step, job.record.rollbacks)
        out.restorations = {**out.restorations, job.record.step: last}
    if out.ledger.step + len(redo) == job.record.step:
        settled = [(span.first, span.last) for span in job.record.settled]
        out.ledger.recall(settled, job.record.dropped_groups)
    else:
        missing = out.ledger.step + len(redo) + 1
        out.problems.append(
            f"the log has no record of step {missing}: steps from there on are made of other groups"
        )


def _is_last(record: PolicyRecord | None, number: int) -> bool:
    return record is not None and record.step == number


async def _recorded(log: EventLog, job_id: str, at: Recovered, patience: Patience) -> dict[int, StepRecord]:
    """Records of the steps after the ledger's."""
    after = Token(at.steps_token) if at.steps_token else None
    found: dict[int, StepRecord] = {}
    while records := await patience(lambda after=after: _read(log, job_id, after), "steps"):
        for record in records:
            after = record.token
            step = record.message(StepRecord)
            found.setdefault(step.step, step)
    return {number: step for number, step in found.items() if number > at.ledger.step}


async def _read(log: EventLog, job_id: str, after: Token | None) -> list[LogRecord]:
    """The next records, without waiting behind the last one."""
    end = await log.end(STEPS, job_id)
    if end is None or end == after:
        return []
    return await log.read(STEPS, key=job_id, after=after, timeout_s=1.0)
