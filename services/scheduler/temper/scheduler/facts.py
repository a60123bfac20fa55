"""What is known about one job: its specification, the books of its groups, its policy, its evaluations.

Facts may repeat, come late or come again after a crash: taking one in twice changes nothing. `save` and `restore` give
the books of `JobLedger`; they are one value, so the log position in them always fits the counts beside it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from temper.api.common.v1.common_pb2 import DropReason, EnvRef, Purpose
from temper.api.job.v1.job_pb2 import GateRecord, Job, JobLedger
from temper.api.rollout.v1.rollout_pb2 import GroupCommand, GroupRecord
from temper.api.trainer.v1.trainer_pb2 import PolicyRecord
from temper.runtime.errors import Stale
from temper.scheduler.evaluation import VALID, is_valid
from temper.scheduler.gates.collapse import Collapses
from temper.scheduler.gates.gate import Gate
from temper.scheduler.groups import evaluation_groups, timestamp
from temper.scheduler.ledger import GroupLedger
from temper.scheduler.points import AFTER, BEFORE, Points
from temper.scheduler.sampler import Sampler
from temper.scheduler.shares import ShareController
from temper.scheduler.transitions import PAUSED, PENDING, RUNNING, TERMINAL

ALIKE = 1e-6  # rewards closer than this make no difference
EVAL_SAMPLES_PER_GROUP = 64  # enough to fill a worker's batch, small enough to spread over several workers


@dataclass(frozen=True, slots=True)
class Where:
    """Where training stands. Example: `Where(phase=1, step=3)`: three steps of the second phase are done."""

    phase: int
    """Index of the phase that takes the next step."""
    step: int
    """Steps taken in it."""


class JobFacts:
    """All state of one job. `fence` is stamped on commands; it says under which lease they were made."""

    def __init__(self, job: Job, fence: int, eval_samples_per_group: int = EVAL_SAMPLES_PER_GROUP) -> None:
        self.job = Job()
        self.job.CopyFrom(job)
        self.ledger = GroupLedger()
        self.points = Points()
        self.sampler = Sampler(job.spec)
        self.shares = ShareController(job.spec)
        self.gate = Gate(job.spec)
        self.collapses = Collapses()
        self.collapsed = 0  # collapses told
        self.policy: PolicyRecord | None = None
        self.log_token = ""
        self.trainer_told = False
        self.first_index: dict[int, int] = {}  # phase -> index of its first group
        self.late = 0  # groups that were in flight when training had finished
        self._quarantined: set[str] = set()  # digests seen; a new activation sees them again
        self.changed = True  # whether `save` would differ from what was last saved
        self.fence = fence
        self._eval_samples = eval_samples_per_group

    # ------------------------------------------------------------ taking in
    def take_envs(self, envs: tuple[EnvRef, ...]) -> None:
        """Variants of the domains, in their order."""
        for domain, env in zip(self.job.spec.domains, envs, strict=True):
            domain.resolved.CopyFrom(env)
        late = {each.name for each in self.job.spec.domains if each.resolved.digest in self._quarantined}
        self._withdraw(self.sampler.withdrawn | late)

    def take_policy(self, record: PolicyRecord) -> None:
        """Settled ranges only grow; progress is the newest seen (a resumed trainer repeats older records)."""
        if self.ledger.settle(record.settled):
            self.changed = True
        known = self.policy
        if (
            known is None
            or (record.version, record.step) >= (known.version, known.step)
            or record.state != known.state
        ):
            self.policy = record

    def take_group(self, record: GroupRecord, token: str) -> None:
        """Count a group once: an evaluation at its point, a training group's success for its curriculum."""
        self.log_token, self.changed = token, True
        if record.purpose == Purpose.PURPOSE_EVAL:
            self.points.add(record)
        elif self.ledger.returned(record.index) and record.purpose == Purpose.PURPOSE_TRAIN:
            for task, (solved, valid) in by_task(record).items():
                self.sampler.observe(record.domain, task, solved, valid)
                self.shares.observe(record.domain, solved, valid)
            self._watch_collapse(record)

    def _watch_collapse(self, record: GroupRecord) -> None:
        """What the group says about its domain; nothing if a rollback has rejected the policy that played it."""
        valid = [sample for sample in record.samples if is_valid(sample)]
        line_start = self.policy.line_start if self.policy else 0
        if valid and min(sample.min_version for sample in valid) >= line_start:
            rewards = [sample.reward for sample in valid]
            flat = max(rewards) - min(rewards) <= ALIKE
            success = sum(sample.solved for sample in valid) / len(valid)
            self.collapses.observe(record.domain, success, flat=flat)

    def take_job(self, job: Job) -> None:
        """Adopt what others may write: pause, resume, an end, and a changed specification."""
        steered = {job.state, self.job.state} == {RUNNING, PAUSED}
        if steered or job.state in TERMINAL:
            self.job.state = job.state
            self.job.reason = job.reason
            self.job.ended_at.CopyFrom(job.ended_at)
        if job.spec != self.job.spec and is_resolved(job):
            keep_phases(job, self.job)
            self.job.spec.CopyFrom(job.spec)
            self.sampler.reconfigure(job.spec)
            self.shares.configure(job.spec)
            self.gate.configure(job.spec)
            self.changed = True
        self.take_wishes(job)

    def take_wishes(self, job: Job) -> None:
        """What the API writes beside the specification: rollbacks asked for, promotions, the last hold."""
        self.job.rollbacks_asked.extend(job.rollbacks_asked[len(self.job.rollbacks_asked) :])
        self.job.promoted_versions.extend(job.promoted_versions[len(self.job.promoted_versions) :])
        self.job.held = job.held

    def lacks(self, job: Job) -> bool:
        """Whether the record of the job says something that others wrote and that is not known here yet."""
        return (
            job.state != self.job.state
            or job.spec != self.job.spec
            or job.held != self.job.held
            or len(job.rollbacks_asked) > len(self.job.rollbacks_asked)
            or len(job.promoted_versions) > len(self.job.promoted_versions)
        )

    def take_environment(self, digest: str, *, withdrawn: bool) -> None:
        """Domains of a quarantined variant are not drawn; those of a lifted one are drawn again."""
        if withdrawn:
            self._quarantined.add(digest)
        else:
            self._quarantined.discard(digest)
        concerned = {each.name for each in self.job.spec.domains if each.resolved.digest == digest}
        known = self.sampler.withdrawn
        self._withdraw(known | concerned if withdrawn else known - concerned)

    def _withdraw(self, domains: frozenset[str]) -> None:
        self.changed = self.changed or domains != self.sampler.withdrawn
        self.sampler.withdraw(domains)

    # ------------------------------------------------------------ questions
    @property
    def total_steps(self) -> int:
        """Optimizer steps of all phases."""
        return sum(phase.steps for phase in self.job.spec.phases)

    def where(self, record: PolicyRecord) -> Where:
        """Phase and step that come next, by the steps taken; phase = number of phases when none is left."""
        left = record.step
        for number, phase in enumerate(self.job.spec.phases):
            if left < phase.steps:
                return Where(number, left)
            left -= phase.steps
        return Where(len(self.job.spec.phases), 0)

    def dropped(self) -> dict[str, int]:
        """Groups dropped, by name of the DropReason."""
        reasons = dict(self.policy.dropped_groups) if self.policy else {}
        if self.late:
            late = DropReason.Name(DropReason.DROP_REASON_LATE)
            reasons[late] = reasons.get(late, 0) + self.late
        return reasons

    def point_commands(self, point: str, version: int, now: float) -> tuple[GroupCommand, ...]:
        """The groups of an evaluation point; none for an "after" that the job does not want."""
        wanted = self.job.spec.eval
        if point == AFTER and not wanted.after:
            return ()
        tasks = wanted.tasks_per_domain
        if point not in {BEFORE, AFTER}:
            tasks = min(wanted.during_tasks or tasks, tasks)
        per_group = max(1, self._eval_samples // wanted.samples_per_task)
        return tuple(
            evaluation_groups(
                self.job,
                point,
                tasks=tasks,
                per_group=per_group,
                version=version,
                fence=self.fence,
                now=now,
            )
        )

    def gate_record(self) -> GateRecord:
        """What the trainer is told."""
        return self.gate.record(self.job.id, self.fence, self.job.promoted_versions)

    def awaits(self, command: GroupCommand) -> bool:
        """Whether the record of a published group is still to come."""
        if command.purpose == Purpose.PURPOSE_EVAL:
            return self.points.owes(command)
        return any(each.index == command.index for each in self.ledger.outstanding())

    def owed(self, now: float) -> tuple[GroupCommand, ...]:
        """Every published group without a record, stamped anew: for a new activation, or when one was lost."""
        evaluations = [
            command
            for name in self.points.pending()
            for command in self.point_commands(name, self.points.point(name).version, now)
            if self.points.owes(command)
        ]
        training = self.ledger.outstanding()
        for command in training:
            command.fence = self.fence
            command.published_at.CopyFrom(timestamp(now))
        return (*evaluations, *training)

    # ------------------------------------------------------------ the books
    def saved(self) -> None:
        """The job, with its evals and verdicts, is in the KV: what stands behind them may go."""
        self.points.forget(self.job.evals)
        self.gate.told()

    def save(self) -> JobLedger:
        """The books as they are; written before anything that they promise is published."""
        next_index, settled, unsettled, returned = self.ledger.save()
        self.changed = False
        state = {
            "fence": self.fence,
            "sampler": self.sampler.state(),
            "shares": self.shares.state(),
            "points": self.points.state(),
            "gate": self.gate.state(),
            "collapses": self.collapses.state(),
            "collapsed": self.collapsed,
            "trainer_told": self.trainer_told,
            "first_index": list(self.first_index.items()),
            "returned": returned,
            "late": self.late,
        }
        return JobLedger(
            next_index=next_index,
            domain_issued=self.sampler.issued,
            domain_frontier=self.sampler.frontier,
            settled=settled,
            log_token=self.log_token,
            sampler_state_json=json.dumps(state, separators=(",", ":")),
            eval_points=self.points.asked,
            unsettled=unsettled,
        )

    def restore(self, books: JobLedger) -> None:
        """Continue from what `save` gave. Stale if it was saved by a newer activation."""
        state = json.loads(books.sampler_state_json)
        if state["fence"] > self.fence:
            raise Stale(f"job {self.job.id} is driven under fence {state['fence']}", field="fence")
        self.sampler.resume(state["sampler"])
        self.shares.resume(state["shares"])
        self.points.resume(books.eval_points, state["points"])
        if "gate" in state:
            self.gate.resume(state["gate"])
            self.collapses.resume(state["collapses"])
            self.collapsed = state["collapsed"]
        self.ledger.load(books.next_index, books.settled, dict(books.unsettled), state["returned"])
        self.log_token = books.log_token
        self.trainer_told = state["trainer_told"]
        self.first_index = dict(state["first_index"])
        self.late = state["late"]


def by_task(record: GroupRecord) -> dict[int, tuple[int, int]]:
    """Task -> (solved, valid) samples of a group."""
    counts: dict[int, tuple[int, int]] = {}
    for sample in record.samples:
        if sample.sample_class in VALID:
            solved, valid = counts.get(sample.task_index, (0, 0))
            counts[sample.task_index] = (solved + sample.solved, valid + 1)
    return counts


def keep_phases(job: Job, ours: Job) -> None:
    """Once training was asked for, the trainer has the phases: an edit that came too late is undone."""
    if ours.state != PENDING:
        del job.spec.phases[:]
        job.spec.phases.extend(ours.spec.phases)


def is_resolved(job: Job) -> bool:
    """Whether qa has named a variant for every domain."""
    return all(domain.HasField("resolved") for domain in job.spec.domains)
