"""Where training goes on: the newest whole snapshot, and the steps that were announced after it.

Announced means: the step's record is in the log, so others may have seen its weights. Those steps are made again from the same
groups before anything new is tried, which gives the same versions bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from temper.api.trainer.v1.trainer_pb2 import StepRecord
from temper.runtime.log.base import EventLog, LogRecord, Token
from temper.trainer.patience import Patience
from temper.trainer.snapshot import Snapshot, Snapshots
from temper.trainer.state import Ledger, Phase

STEPS = "steps"


@dataclass(slots=True)
class Recovered:
    """The point to go on from."""

    ledger: Ledger
    """With the announced steps in its redo list."""
    snapshot: Snapshot | None
    """None: begin with the initial policy."""
    steps_token: str
    """Position of the last own record in log topic ``steps``."""
    trained_tokens: int
    problems: Sequence[str]
    """Broken snapshots that were passed over."""


async def recover(
    snapshots: Snapshots, log: EventLog, job_id: str, phases: Sequence[Phase], patience: Patience
) -> Recovered:
    """Find the point. Raises Unavailable when the stores stay away."""
    found = await patience(snapshots.newest, "snapshots")
    if found.snapshot is None:
        out = Recovered(Ledger(phases), None, "", 0, found.broken)
    else:
        facts = found.snapshot.facts
        ledger = Ledger.from_facts(phases, facts["ledger"])
        token, tokens = str(facts["steps_token"]), int(facts["trained_tokens"])
        out = Recovered(ledger, found.snapshot, token, tokens, found.broken)
    out.ledger.redo(await _announced(log, job_id, out, patience))
    return out


async def _announced(log: EventLog, job_id: str, at: Recovered, patience: Patience) -> list[Sequence[str]]:
    """Group ids of the steps that follow the ledger's, in order and without gap."""
    after = Token(at.steps_token) if at.steps_token else None
    found: dict[int, Sequence[str]] = {}
    while records := await patience(lambda after=after: _read(log, job_id, after), "steps"):
        for record in records:
            after = record.token
            step = record.message(StepRecord)
            found.setdefault(step.step, tuple(step.group_ids))
    out: list[Sequence[str]] = []
    while (number := at.ledger.step + len(out) + 1) in found:
        out.append(found[number])
    return out


async def _read(log: EventLog, job_id: str, after: Token | None) -> list[LogRecord]:
    """The next records, without waiting behind the last one."""
    end = await log.end(STEPS, job_id)
    if end is None or end == after:
        return []
    return await log.read(STEPS, key=job_id, after=after, timeout_s=1.0)
