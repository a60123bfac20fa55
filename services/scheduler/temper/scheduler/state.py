"""One job as a state machine: signals in, effects out. Synchronous, no clock, no network.

`JobMachine.handle(signal, now)` takes in a fact and then moves the job as far as the facts allow. A rule looks only at
what is known (`facts`), never at how it became known; so a machine that was killed and restored from its books goes on
as if nothing had happened. What must not happen twice has a deterministic id.
"""

from __future__ import annotations

from collections.abc import Iterable

from temper.api.job.v1.job_pb2 import JobState, Notice, StateChanged
from temper.api.job.v1.spec_pb2 import PhaseSpec
from temper.api.rollout.v1.rollout_pb2 import GroupCommand
from temper.api.trainer.v1.trainer_pb2 import PolicyRecord, TrainingState
from temper.scheduler import transitions
from temper.scheduler.acceptance import shortfalls
from temper.scheduler.credits import Credits
from temper.scheduler.facts import JobFacts, is_resolved
from temper.scheduler.gates import following
from temper.scheduler.groups import timestamp, training_group
from temper.scheduler.points import AFTER, BEFORE
from temper.scheduler.shares import seesaws
from temper.scheduler.signals import (
    Announce,
    Effect,
    EnvironmentSeen,
    GroupSeen,
    Issue,
    JobSeen,
    Order,
    PolicySeen,
    Refused,
    Resolve,
    Resolved,
    Revoke,
    Signal,
    StartTrainer,
    Stop,
    Tick,
    TrainerLost,
)
from temper.scheduler.transitions import FAILED, FINISHING, RUNNING, STARTING, SUCCEEDED, TERMINAL


class JobMachine:
    """The decisions about one job; `facts` is its state."""

    def __init__(self, facts: JobFacts) -> None:
        self.facts = facts
        self._resolving = False
        self._effects: list[Effect] = []

    @property
    def over(self) -> bool:
        """Whether the job has ended."""
        return self.facts.job.state in TERMINAL

    def handle(self, signal: Signal, now: float) -> list[Effect]:
        """Take in `signal` at unix time `now`; returns what has to be done, in order."""
        if self.over:
            return []
        self._take(signal, now)
        self._advance(now)
        return self._decided()

    def recover(self, now: float) -> list[Effect]:
        """What a new activation does first: publish again all that is owed. Ids make it harmless."""
        facts = self.facts
        if self.over:
            return []
        if facts.trainer_told and facts.policy is None:
            self._effects.append(StartTrainer())
        if owed := facts.owed(now):
            self._effects.append(Issue(owed))
        self._follow(following.again(facts), now)
        return self._decided()

    def _decided(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    # ------------------------------------------------------------ facts
    def _take(self, signal: Signal, now: float) -> None:
        match signal:
            case Resolved(envs):
                self._resolving = False
                before = self.facts.sampler.withdrawn
                self.facts.take_envs(envs)
                self._remixed(before, "while it was being admitted")
            case Refused(reason):
                self._move(FAILED, now, reason)
            case EnvironmentSeen(digest, withdrawn, reason):
                before = self.facts.sampler.withdrawn
                self.facts.take_environment(digest, withdrawn=withdrawn)
                self._remixed(before, reason)
            case TrainerLost(reason):
                self._move(FAILED, now, f"no trainer could take the job: {reason}")
            case PolicySeen(record):
                self._greet_recovered(record)
                self.facts.take_policy(record)
                self._follow(following.carried_out(self.facts, record), now)
            case GroupSeen(record, token):
                self.facts.take_group(record, token)
            case JobSeen(job):
                promoted = len(self.facts.job.promoted_versions)
                self.facts.take_job(job)
                if len(self.facts.job.promoted_versions) > promoted:
                    self._effects.append(Order())  # the trainer must keep their weights
            case Tick():
                pass

    def _greet_recovered(self, record: PolicyRecord) -> None:
        known = self.facts.policy
        if known is not None and record.recoveries > known.recoveries:
            text = (
                f"training resumed from a snapshot at step {record.step} on {record.trainer or 'a trainer'}"
            )
            self._effects.append(notice("warning", "trainer_recovered", text, key=str(record.recoveries)))

    def _remixed(self, before: frozenset[str], reason: str) -> None:
        """Tell which domains are mixed no more, or again; what nobody has finished of the former is revoked."""
        facts = self.facts
        gone, back = facts.sampler.withdrawn - before, before - facts.sampler.withdrawn
        if gone:
            rest = ", and no domain is left to mix" if facts.sampler.empty else ""
            text = f"the environment of {', '.join(sorted(gone))} is quarantined{rest}: {reason}"
            self._effects.append(notice("warning", "environment_quarantined", text, key=self._moment(gone)))
        if back:
            text = f"the environment of {', '.join(sorted(back))} is admitted again"
            self._effects.append(notice("info", "environment_lifted", text, key=self._moment(back)))
            facts.job.reason = ""
        revoked = tuple(each for each in facts.ledger.outstanding() if each.domain in gone)
        if revoked:
            self._effects.append(Revoke(revoked))

    def _moment(self, domains: frozenset[str]) -> str:
        return f"{'/'.join(sorted(domains))}/{self.facts.ledger.published}"

    # ------------------------------------------------------------ rules
    def _advance(self, now: float) -> None:
        """Apply the rules until nothing moves."""
        for _ in transitions.ALLOWED:  # each state is left at most once, so this many rounds are enough
            before = self.facts.job.state
            self._rule(now)
            if self.facts.job.state == before:
                break
        self._conclude(now)

    def _follow(self, wanted: Iterable[following.Following], now: float) -> None:
        """Pass on what the gates want; only the end of the job is the machine's own doing."""
        for each in wanted:
            if not isinstance(each, Stop):
                self._effects.append(each)
            elif not self.over:
                self._move(FAILED, now, each.reason)

    def _rule(self, now: float) -> None:
        record = self.facts.policy
        if record is not None and record.state == TrainingState.TRAINING_STATE_FAILED and not self.over:
            self._move(FAILED, now, record.message or "training failed")
        match self.facts.job.state:
            case JobState.JOB_STATE_PENDING:
                self._admit(now)
            case JobState.JOB_STATE_STARTING:
                self._start(now)
            case JobState.JOB_STATE_RUNNING:
                self._run(now)
            case JobState.JOB_STATE_FINISHING if AFTER not in self.facts.points.asked:
                self._evaluate(AFTER, now)
            case _:
                pass

    def _admit(self, now: float) -> None:
        if is_resolved(self.facts.job):
            self._move(STARTING, now)
        elif not self._resolving:
            self._resolving = True
            self._effects.append(Resolve())

    def _start(self, now: float) -> None:
        if self.facts.policy is not None:
            self.facts.job.started_at.CopyFrom(timestamp(now))
            self._move(RUNNING, now)
        elif not self.facts.trainer_told:
            self._effects.append(StartTrainer())
            self.facts.trainer_told = self.facts.changed = True

    def _run(self, now: float) -> None:
        """Evaluation before, then groups under credits, evaluations on the way, until training has finished."""
        facts, record = self.facts, self.facts.policy
        if record is None:
            return
        if record.state == TrainingState.TRAINING_STATE_FINISHED:
            facts.late += facts.ledger.settle_rest()
            self._move(FINISHING, now)
        elif facts.job.spec.eval.before and BEFORE not in facts.points.asked:
            self._evaluate(BEFORE, now)
        elif BEFORE not in facts.points.pending():  # training may not move the policy that is being measured
            self._evaluate_on_the_way(record, now)
            self._issue(record, now)

    def _evaluate_on_the_way(self, record: PolicyRecord, now: float) -> None:
        every = self.facts.job.spec.eval.every
        reached = record.step // every * every if every else 0
        point = f"step-{reached}"
        if 0 < reached < self.facts.total_steps and point not in self.facts.points.asked:
            self._evaluate(point, now)

    def _evaluate(self, point: str, now: float) -> None:
        record = self.facts.policy or PolicyRecord()
        commands = self.facts.point_commands(point, record.version, now)
        self.facts.points.ask(point, record, commands)
        self.facts.changed = True
        if commands:
            self._effects.append(Issue(commands))

    def _issue(self, record: PolicyRecord, now: float) -> None:
        """Spend every free credit of the phase that takes the next step."""
        where = self.facts.where(record)
        if self.facts.sampler.empty:
            self.facts.job.reason = "every environment of the mix is quarantined"
        if where.phase >= len(self.facts.job.spec.phases) or self.facts.sampler.empty:
            return
        phase = self.facts.job.spec.phases[where.phase]
        credit = Credits(phase.max_staleness, phase.groups_per_step)
        free = credit.free(self.facts.ledger.in_flight, phase.steps - where.step)
        commands = tuple(self._next_group(where.phase, phase, record.version, now) for _ in range(free))
        if commands:
            self.facts.changed = True
            self._effects.append(Issue(commands))

    def _next_group(self, number: int, phase: PhaseSpec, version: int, now: float) -> GroupCommand:
        facts = self.facts
        index = facts.ledger.published
        first = facts.first_index.setdefault(number, index)
        command = training_group(
            facts.job,
            index=index,
            phase=number,
            position=min(1.0, (index - first) / (phase.steps * phase.groups_per_step)),
            draw=facts.sampler.draw(phase.tasks_per_group),
            version=version,
            fence=facts.fence,
            now=now,
        )
        facts.ledger.publish(command)
        return command

    def _conclude(self, now: float) -> None:
        """Announce evaluations that are complete; when the last one is, the job's own bounds decide."""
        facts = self.facts
        for result in facts.points.results(facts.job.evals):
            facts.job.evals.append(result)
            self._effects.append(Announce(f"eval/{result.point}/{result.domain}", result))
            facts.changed = True
            self._weigh(result.point)
        self._follow(following.judge(facts), now)
        self._follow(following.collapses(facts), now)
        self._follow(following.asked(facts), now)
        if facts.job.state == FINISHING and AFTER in facts.points.asked and not facts.points.pending():
            missed = shortfalls(facts.job.spec.accept, facts.job.evals)
            self._move(FAILED if missed else SUCCEEDED, now, "; ".join(missed))
        if self.over and facts.ledger.in_flight:  # cancelled or failed: nobody will settle these any more
            facts.late += facts.ledger.settle_rest()

    def _weigh(self, point: str) -> None:
        """When an evaluation is whole: shares move by it, and a domain that rose at another's expense is told."""
        facts = self.facts
        results = [each for each in facts.job.evals if each.point == point]
        if len(results) < len(facts.job.spec.domains):
            return
        earlier = [each for each in facts.job.evals if each.point != point]
        last = [each for each in earlier if earlier and each.point == earlier[-1].point]
        for pair in seesaws(last, results, margin=facts.job.spec.mix.seesaw_margin):
            text = (
                f"{pair.up} rose by {pair.gained:.3f} while {pair.down} fell by {-pair.lost:.3f} until {point}; "
                f"conflict_cosine of the pair is in the metrics of the steps"
            )
            self._effects.append(notice("warning", "seesaw", text, key=f"{point}/{pair.up}/{pair.down}"))
        if point not in {BEFORE, AFTER} and facts.shares.take(point, results):
            facts.sampler.reshare(facts.shares.shares)
            shares = ", ".join(f"{name} {share:.3f}" for name, share in sorted(facts.shares.shares.items()))
            moment = f"{point}/{facts.log_token}"  # a crash may see more groups before it sees the evaluation
            self._effects.append(notice("info", "shares", f"after {point}: {shares}", key=moment))

    def _move(self, target: JobState, now: float, reason: str = "") -> None:
        job = self.facts.job
        transitions.check(job.state, target)
        job.state, job.reason = target, reason
        if target in TERMINAL:
            job.ended_at.CopyFrom(timestamp(now))
        key = f"state/{transitions.name_of(target)}"
        self._effects.append(Announce(key, StateChanged(state=target, reason=reason)))


def notice(level: str, code: str, message: str, *, key: str) -> Announce:
    """A sentence for people; shown once per `code` and `key`."""
    return Announce(f"notice/{code}/{key}", Notice(level=level, code=code, message=message))
