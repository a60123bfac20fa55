"""What follows from a verdict, a collapse, or a user's wish to go back: effects for the actor, decided once and kept in the books."""

from __future__ import annotations

from collections.abc import Iterator

from temper.api.job.v1.job_pb2 import GateCheck, GateVerdict, Notice
from temper.api.trainer.v1.trainer_pb2 import PolicyRecord, TrainingState
from temper.scheduler.facts import JobFacts
from temper.scheduler.gates.gate import FAIL, PASS
from temper.scheduler.gates.settings import ALARM, HOLD, OFF, ROLLBACK, STOP
from temper.scheduler.points import AFTER
from temper.scheduler.signals import Announce, Hold, Order, Stop

MOST_CHECKS = 8
"""Checks of a verdict that a job keeps."""

Following = Announce | Hold | Order | Stop


def judge(facts: JobFacts) -> Iterator[Following]:
    """Verdicts on evaluations that have become whole."""
    gate = facts.gate
    if not gate.active:
        return
    if finished(facts):
        gate.too_late()
    for name in facts.points.whole():
        if name in gate.judged:
            continue
        point = facts.points.point(name)
        held = gate.accepted_version
        verdict = gate.judge(name, point.step, point.version, point.tallies)
        verdict.manifest.CopyFrom(point.manifest)
        facts.changed = True
        if verdict.verdict == FAIL:
            # after the last step nothing is left to be sent back or held: `[accept]` decides about the job
            verdict.action = ALARM if name == AFTER else gate.spec.action
        yield from follow(facts, verdict)
        if gate.accepted_version != held:
            yield Order()


def collapses(facts: JobFacts) -> Iterator[Following]:
    """Domains that have lost all success in training."""
    gate, wanted = facts.gate, facts.gate.spec.on_collapse
    if wanted in ("", OFF) or gate.waiting or finished(facts):
        return
    for domain, track in facts.collapses.news(gate.spec.collapse_groups).items():
        facts.changed = True
        facts.collapsed += 1
        message = (
            f"{domain} has collapsed in training: its last {track.run} groups had no success and no difference, "
            f"its best was {track.best:.2f}"
        )
        check = GateCheck(domain=domain, bound="collapse", verdict=FAIL, value=0.0, n=track.run)
        check.limit, check.message = track.best, message
        verdict = GateVerdict(
            point=f"collapse-{facts.collapsed}", verdict=FAIL, checks=[check], message=message
        )
        verdict.action = ALARM if gate.waiting else wanted  # two at once need one way back
        _stamp(facts, verdict)
        yield from follow(facts, verdict)


def asked(facts: JobFacts) -> Iterator[Following]:
    """Rollbacks that users asked for."""
    gate = facts.gate
    while not finished(facts) and gate.asked < len(facts.job.rollbacks_asked):
        reason = facts.job.rollbacks_asked[gate.asked]
        gate.asked += 1
        facts.changed = True
        verdict = GateVerdict(point=f"asked-{gate.asked}", verdict=FAIL, message=reason, action=ROLLBACK)
        _stamp(facts, verdict)
        yield from _ordered(facts, verdict)


def again(facts: JobFacts) -> Iterator[Following]:
    """What a new activation does: tell the trainer, and do anew what may not have been done."""
    if facts.gate.orders or facts.gate.accepted_step or facts.job.promoted_versions:
        yield Order()
    for verdict in facts.gate.pending:
        yield _kept(facts, verdict)
        yield from _acted(verdict)


def finished(facts: JobFacts) -> bool:
    """Whether training has ended."""
    return facts.policy is not None and facts.policy.state == TrainingState.TRAINING_STATE_FINISHED


def carried_out(facts: JobFacts, record: PolicyRecord) -> Iterator[Following]:
    """The trainer has gone back."""
    if not facts.gate.carried_out(record.rollbacks, facts.points.pending()):
        return
    facts.collapses.renew()
    facts.changed = True
    text = (
        f"training went back to the state of step {facts.gate.accepted_step} and goes on as version {record.line_start}: "
        f"{facts.gate.reason}"
    )
    yield Announce(
        f"notice/rolled_back/{record.rollbacks}", Notice(level="warning", code="rolled_back", message=text)
    )


def follow(facts: JobFacts, verdict: GateVerdict) -> Iterator[Following]:
    """Announce a verdict, and do what it leads to."""
    if verdict.action == ROLLBACK and facts.gate.used_up:
        verdict.action = STOP
        verdict.message += f"; {facts.gate.spec.max_rollbacks} rollbacks were made already"
    if verdict.action == ROLLBACK:
        yield from _ordered(facts, verdict)
        return
    yield _told(facts, verdict)
    yield from _acted(verdict)


def _acted(verdict: GateVerdict) -> Iterator[Following]:
    if verdict.action == HOLD:
        yield Hold(verdict.point, f"held at {verdict.point}: {verdict.message}")
    elif verdict.action == STOP:
        yield Stop(f"stopped at {verdict.point}: {verdict.message}")


def _ordered(facts: JobFacts, verdict: GateVerdict) -> Iterator[Following]:
    verdict.rollback = facts.gate.order(f"{verdict.point}: {verdict.message}")
    yield Order()
    yield _told(facts, verdict)


def _told(facts: JobFacts, verdict: GateVerdict) -> Announce:
    facts.gate.pending.append(verdict)
    return _kept(facts, verdict)


def _kept(facts: JobFacts, verdict: GateVerdict) -> Announce:
    """The event has every check; the job keeps what did not pass."""
    kept = GateVerdict()
    kept.CopyFrom(verdict)
    del kept.checks[:]
    bad = [check for check in verdict.checks if check.verdict != PASS]
    kept.checks.extend(sorted(bad, key=lambda each: each.verdict != FAIL)[:MOST_CHECKS])
    if all(each.point != verdict.point for each in facts.job.gates):
        facts.job.gates.append(kept)
    return Announce(f"gate/{verdict.point}", verdict)


def _stamp(facts: JobFacts, verdict: GateVerdict) -> None:
    record = facts.policy or PolicyRecord()
    verdict.step, verdict.version = record.step, record.version
    if record.HasField("manifest"):
        verdict.manifest.CopyFrom(record.manifest)
