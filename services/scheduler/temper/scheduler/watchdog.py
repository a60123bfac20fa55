"""No progress: say in one sentence what is waited for. An alarm without a name helps nobody."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from temper.api.job.v1.job_pb2 import JobState
from temper.api.job.v1.platform_pb2 import Presence
from temper.scheduler import transitions
from temper.scheduler.credits import Credits
from temper.scheduler.facts import JobFacts

Waiting = Literal["qa", "trainer", "rollout", ""]
MOST_SHOWN = 6  # instances
TOLD = ("training", "jobs", "in_use", "slots")  # of what an instance says of itself
NEEDS = {"rollout": ("rollout", "sandbox"), "trainer": ("trainer",), "qa": ("qa", "sandbox"), "": ()}


@dataclass(frozen=True, slots=True)
class Stall:
    """What a job waits for. Example: `Stall("rollout", "no live rollout worker: …", absent=("rollout",))`."""

    waiting_for: Waiting
    """Service whose move it is; empty when it is nobody's."""
    message: str
    """One sentence."""
    absent: tuple[str, ...]
    """Services that are needed and have no live instance."""


def waiting_for(facts: JobFacts) -> Waiting:
    """Whose move it is."""
    state = facts.job.state
    if state == transitions.PENDING:
        return "qa"
    if state == transitions.STARTING:
        return "trainer"
    if state not in {transitions.RUNNING, transitions.FINISHING}:
        return ""
    if facts.points.pending() or facts.ledger.outstanding():
        return "rollout"
    return "trainer"


def diagnose(facts: JobFacts, presences: Iterable[Presence], idle_s: float) -> Stall | None:
    """The sentence for a job in which nothing has happened for `idle_s` seconds; None if nothing should."""
    waits = waiting_for(facts)
    if not waits:
        return None
    there = list(presences)
    live = {presence.service for presence in there if presence.state != "draining"}
    absent = tuple(service for service in NEEDS[waits] if service not in live)
    if absent:
        missing = " and ".join(f"no {service} service" for service in absent)
        message = f"{missing} is running; start one"
    else:
        message = _unfinished(facts, waits) + queues(facts) + states(there, NEEDS[waits])
    return Stall(waits, f"nothing has happened for {idle_s:.0f} s: {message}", absent)


def queues(facts: JobFacts) -> str:
    """What the queues of a job that trains hold, and which of them is empty."""
    if facts.job.state != transitions.RUNNING or facts.policy is None:
        return ""
    where = facts.where(facts.policy)
    if where.phase >= len(facts.job.spec.phases):
        return ""
    phase = facts.job.spec.phases[where.phase]
    credit = Credits(phase.max_staleness, phase.groups_per_step)
    free = credit.free(facts.ledger.in_flight, phase.steps - where.step)
    held = {"rollout": len(facts.ledger.outstanding()), "trainer": facts.ledger.waiting_for_trainer()}
    said = ", ".join(f"{count or 'no'} groups for {name}" for name, count in held.items())
    empty = [name for name, count in held.items() if not count]
    named = f"; empty: queue of {' and of '.join(empty)}" if empty else ""
    return f" ({said}, {free} of {credit.bound} credits free{named})"


def states(present: Iterable[Presence], services: Iterable[str]) -> str:
    """What the services whose move it is say of themselves, at most six instances."""
    wanted = [each for each in present if each.service in tuple(services)]
    said = [f"{each.instance} {each.state}{_status(each)}" for each in wanted[:MOST_SHOWN]]
    more = f" and {len(wanted) - MOST_SHOWN} more" if len(wanted) > MOST_SHOWN else ""
    return f"; {', '.join(said)}{more}" if said else ""


def _status(each: Presence) -> str:
    known = [f"{key}={each.status[key]}" for key in TOLD if key in each.status]
    return f" [{' '.join(known)}]" if known else ""


def _unfinished(facts: JobFacts, waits: Waiting) -> str:
    groups = len(facts.ledger.outstanding())
    match waits:
        case "qa":
            return "qa is still checking the job's environments"
        case "trainer" if facts.job.state == JobState.JOB_STATE_STARTING:
            return "no trainer has published the initial policy yet"
        case "trainer" if facts.sampler.empty and not facts.ledger.in_flight:
            return "every environment of the mix is quarantined"
        case "trainer":
            return f"the trainer has not settled {facts.ledger.waiting_for_trainer()} finished groups"
        case _ if facts.points.pending():
            return f"rollout workers owe the evaluation {', '.join(facts.points.pending())!r} and {groups} groups"
        case _:
            return f"rollout workers owe {groups} groups"
