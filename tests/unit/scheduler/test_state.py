"""The state machine of a job, driven by scripted peers; crashes, repeats and losses at random."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.scheduler.jobs import ScriptedTrainer, demo_phase, env, job, policy_phase, record_of

from temper.api.common.v1.common_pb2 import DropReason, Purpose
from temper.api.job.v1.job_pb2 import EvalResult, JobLedger, JobState, StateChanged
from temper.api.rollout.v1.rollout_pb2 import GroupCommand
from temper.api.trainer.v1.trainer_pb2 import PolicyRecord, TrainingState
from temper.scheduler import transitions
from temper.scheduler.credits import Credits
from temper.scheduler.facts import JobFacts
from temper.scheduler.signals import (
    Announce,
    GroupSeen,
    Issue,
    JobSeen,
    PolicySeen,
    Refused,
    Resolve,
    Resolved,
    StartTrainer,
    Tick,
    TrainerLost,
)
from temper.scheduler.state import JobMachine

NOW = 1_700_000_000.0
RUNNING, PAUSED = JobState.JOB_STATE_RUNNING, JobState.JOB_STATE_PAUSED


class World:
    """A job with its peers. Everything the machine publishes lands here; a crash keeps what was saved."""

    def __init__(self, chance=None, **changes):
        self.chance = chance or random.Random(0)
        self.job = job(**changes)
        self.books: JobLedger | None = None
        self.machine = JobMachine(JobFacts(self.job, fence=1, eval_samples_per_group=4))
        self.trainer: ScriptedTrainer | None = None
        self.queue: dict[str, GroupCommand] = {}
        self.seen_ids: set[str] = set()
        self.log: list = []
        self.logged: set[str] = set()
        self.read = 0
        self.announced: dict[str, object] = {}
        self.poison: set[str] = set()
        self.issued: list[GroupCommand] = []

    # -------- the machine's side
    def tell(self, signal):
        self.perform(self.machine.handle(signal, NOW))

    def perform(self, effects):
        if any(isinstance(effect, Issue | StartTrainer) for effect in effects):
            self.save()
        for effect in effects:
            match effect:
                case Resolve():
                    self.tell(
                        Resolved(tuple(env(domain.env) for domain in self.machine.facts.job.spec.domains))
                    )
                case StartTrainer():
                    spec = self.machine.facts.job.spec
                    self.trainer = self.trainer or ScriptedTrainer(list(spec.phases), self.job.id)
                case Issue(commands):
                    for command in commands:
                        self.publish(command)
                case Announce(key, payload):
                    assert self.announced.get(key, payload) == payload, "an announcement changed its words"
                    self.announced[key] = payload
                case _:
                    raise AssertionError(effect)
        self.machine.facts.ledger.check()
        self.job.CopyFrom(self.machine.facts.job)

    def publish(self, command):
        """As the broker: the same id twice is one message."""
        self.issued.append(command)
        if command.group_id not in self.seen_ids:
            self.seen_ids.add(command.group_id)
            self.queue[command.group_id] = command

    def publish_policy(self):
        assert self.trainer is not None
        self.tell(PolicySeen(self.trainer.published()))

    def save(self):
        self.books = self.machine.facts.save()

    def crash(self):
        """kill -9, then another activation under a higher fence."""
        facts = JobFacts(self.job, fence=self.machine.facts.fence + 1, eval_samples_per_group=4)
        if self.books is not None:
            facts.restore(JobLedger.FromString(self.books.SerializeToString()))
        self.read = int(facts.log_token or 0)
        self.machine = JobMachine(facts)
        if self.trainer:
            facts.take_policy(self.trainer.published())
        self.perform(self.machine.recover(NOW))
        self.tell(Tick())

    # -------- the peers' side
    def rollout(self, group_id):
        self.taken = command = self.queue.pop(group_id)
        record = record_of(command, solved=self.chance.random() < 0.5)
        if group_id in self.poison:
            del record.samples[:]
            record.drop_reason = DropReason.DROP_REASON_POISON
        if group_id not in self.logged:
            self.logged.add(group_id)
            self.log.append(record)
            if self.trainer:
                self.trainer.offer(record)

    def deliver(self, count=1):
        for record in self.log[self.read : self.read + count]:
            self.read += 1
            self.tell(GroupSeen(record, str(self.read)))

    def round(self):
        """One fair round: every peer does one thing. Returns whether anything moved."""
        moved = False
        if self.queue:
            self.rollout(next(iter(self.queue)))
            moved = True
        if self.read < len(self.log):
            self.deliver()
            moved = True
        if self.trainer and (self.trainer.step() or self.machine.facts.policy != self.trainer.record):
            self.publish_policy()
            moved = True
        return moved

    def run(self, limit=5000):
        self.tell(Tick())
        for _ in range(limit):
            if not self.round():
                break
        return self

    @property
    def state(self):
        return self.machine.facts.job.state


def assert_balanced(world):
    facts = world.machine.facts
    assert facts.policy is not None
    assert facts.ledger.in_flight == 0
    assert facts.ledger.published == facts.policy.consumed_groups + sum(facts.dropped().values())
    trained = world.trainer.trained
    assert (
        len(trained) == len(set(trained)) == sum(p.steps * p.groups_per_step for p in facts.job.spec.phases)
    )


def test_a_job_goes_from_pending_to_succeeded():
    world = World().run()
    assert transitions.name_of(world.state) == "succeeded"
    states = [key for key in world.announced if key.startswith("state/")]
    assert states == ["state/starting", "state/running", "state/finishing", "state/succeeded"]
    assert {(each.point, each.domain) for each in world.job.evals} == set(
        itertools.product(("before", "after"), ("calc", "sums"))
    )
    assert_balanced(world)


def test_without_drops_no_group_is_surplus():
    world = World().run()
    assert world.machine.facts.ledger.published == 12
    assert world.machine.facts.dropped() == {}


def test_two_phases_with_demonstrations_first():
    world = World(phases=[demo_phase(), policy_phase()]).run()
    assert transitions.name_of(world.state) == "succeeded"
    assert_balanced(world)


def test_demonstrations_follow_the_oracle_mix_over_the_phase():
    world = World(phases=[demo_phase(steps=20)], eval={"tasksPerDomain": 1, "samplesPerTask": 1})
    issued = world.run().issued
    demos = [each for each in issued if each.purpose == Purpose.PURPOSE_DEMO]
    early = {style for each in demos[:30] for style in each.oracle_styles}
    late = [style for each in demos[30:] for style in each.oracle_styles]
    assert early == {"tool"}
    assert 0.3 < late.count("direct") / len(late) < 0.7
    assert all(len(each.oracle_styles) == len(each.task_indices) == 4 for each in demos)


def test_training_does_not_begin_before_the_first_evaluation_has_ended():
    world = World()
    world.tell(Tick())
    world.publish_policy()
    assert {command.purpose for command in world.queue.values()} == {Purpose.PURPOSE_EVAL}
    while world.queue:
        assert world.machine.facts.ledger.published == 0
        world.rollout(next(iter(world.queue)))
    world.deliver(100)
    assert world.machine.facts.ledger.published == 6


def test_evaluations_on_the_way_come_every_k_steps_and_not_at_the_end():
    evaluation = {"tasksPerDomain": 6, "duringTasks": 2, "every": 2, "after": True, "samplesPerTask": 1}
    world = World(eval=evaluation, phases=[policy_phase(steps=6)]).run()
    assert world.machine.facts.points.asked == ["step-2", "step-4", "after"]
    on_the_way = [each for each in world.job.evals if each.point == "step-2"]
    assert all(each.attempted == 2 and each.step == 2 for each in on_the_way)


def test_before_and_after_use_the_same_tasks_and_seeds():
    world = World()
    issued = world.run().issued
    at = {
        point: [(e.domain, tuple(e.task_indices), e.seed) for e in issued if e.eval_point == point]
        for point in ("before", "after")
    }
    assert at["before"] == at["after"]
    assert all(e.split == "heldout" for e in issued if e.eval_point)
    assert all(e.split == "train" for e in issued if not e.eval_point)


def test_groups_demand_the_published_version():
    world = World()
    issued = world.run().issued
    versions = [each.min_version for each in issued if each.purpose == Purpose.PURPOSE_TRAIN]
    assert versions == sorted(versions)
    assert versions[:6] == [0] * 6
    assert next(each.min_version for each in issued if each.eval_point == "after") == 4


def test_a_refused_environment_fails_the_job_with_its_reason():
    world = World()
    assert isinstance(world.machine.handle(Tick(), NOW)[0], Resolve)
    world.tell(Refused("calc: the null agent passes"))
    assert transitions.name_of(world.state) == "failed"
    assert "null agent" in world.job.reason


def test_qa_is_asked_once_until_it_answers():
    machine = JobMachine(JobFacts(job(), fence=1))
    assert machine.handle(Tick(), NOW) == [Resolve()]
    assert machine.handle(Tick(), NOW) == []


def test_a_failed_training_fails_the_job():
    world = World()
    world.tell(Tick())
    failed = PolicyRecord(state=TrainingState.TRAINING_STATE_FAILED, message="loss is not finite")
    world.tell(PolicySeen(failed))
    assert (transitions.name_of(world.state), world.job.reason) == ("failed", "loss is not finite")


def test_a_dead_command_to_train_fails_the_job():
    world = World()
    world.tell(Tick())
    world.tell(TrainerLost("engine 'megatron' is not installed"))
    assert "megatron" in world.job.reason


def change(world, state):
    seen = type(world.job)()
    seen.CopyFrom(world.job)
    seen.state = state
    world.tell(JobSeen(seen))


def test_pause_stops_publication_and_resume_goes_on():
    world = World()
    world.tell(Tick())
    while world.machine.facts.ledger.published == 0:
        world.round()
    change(world, PAUSED)
    published = world.machine.facts.ledger.published
    world.run()
    assert world.state == PAUSED
    assert world.machine.facts.ledger.published == published
    change(world, RUNNING)
    world.run()
    assert transitions.name_of(world.state) == "succeeded"
    assert_balanced(world)


def test_a_cancelled_job_does_nothing_more():
    world = World()
    world.tell(Tick())
    change(world, JobState.JOB_STATE_CANCELLED)
    assert world.machine.over
    assert world.machine.handle(PolicySeen(PolicyRecord()), NOW) == []
    assert world.machine.recover(NOW) == []


def test_bounds_decide_between_succeeded_and_failed():
    world = World(accept={"minPass": {"calc": 1.0}, "minMeanPass": 0.99}).run()
    assert transitions.name_of(world.state) == "failed"
    assert "calc: pass@1" in world.job.reason
    assert "mean over domains" in world.job.reason


def test_poisoned_groups_are_replaced_and_the_books_balance():
    world = World()
    world.poison = {f"quickstart-7f3a-{index}" for index in (0, 3, 5)} | {"quickstart-7f3a-before-calc-0"}
    world.run()
    assert transitions.name_of(world.state) == "succeeded"
    assert world.machine.facts.dropped() == {"DROP_REASON_POISON": 3}
    assert world.machine.facts.ledger.published == 15
    before = next(each for each in world.job.evals if (each.point, each.domain) == ("before", "calc"))
    assert (before.n, before.attempted) == (2, 6)
    assert_balanced(world)


def test_a_changed_share_changes_what_is_drawn_next():
    world = World(phases=[policy_phase(steps=40)])
    world.tell(Tick())
    for _ in range(100):
        world.round()
    edited = type(world.job)()
    edited.CopyFrom(world.job)
    edited.spec.domains[0].share = 100.0
    issued = dict(world.machine.facts.sampler.issued)
    world.tell(JobSeen(edited))
    world.run()
    after = world.machine.facts.sampler.issued
    new = {name: after[name] - issued.get(name, 0) for name in after}
    assert new["calc"] > 10 * new["sums"]
    assert_balanced(world)


SHAPES = [
    {"phases": [policy_phase()]},
    {"phases": [policy_phase(maxStaleness=0, groupsPerStep=2)]},
    {"phases": [demo_phase(steps=3), policy_phase(maxStaleness=3)]},
    {"eval": {"tasksPerDomain": 5, "every": 1, "before": True, "after": True, "samplesPerTask": 2}},
    {
        "eval": {"tasksPerDomain": 5, "every": 1, "before": True, "after": True, "samplesPerTask": 2},
        "mix": {"controller": "learnability", "kappa": 2.0, "maxChange": 0.25, "floor": 0.25, "ceiling": 4.0},
    },
]


@given(st.sampled_from(SHAPES), st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_no_group_is_lost_or_doubled_by_crashes_repeats_and_disorder(shape, chance):
    world = World(chance, **shape)
    world.tell(Tick())
    for _ in range(400):
        move = chance.choice(
            ["rollout", "rollout", "deliver", "train", "policy", "crash", "save", "repeat", "tick"]
        )
        if move == "rollout" and world.queue:
            world.rollout(chance.choice(list(world.queue)))
        elif move == "deliver":
            world.deliver(chance.randint(1, 3))
        elif move == "train" and world.trainer:
            world.trainer.step()
        elif move == "policy" and world.trainer:
            world.publish_policy()
        elif move == "crash" and chance.random() < 0.3:
            world.crash()
        elif move == "save" and not world.machine.over:
            world.save()
        elif move == "repeat" and world.log:
            position = chance.randrange(len(world.log))
            if position < world.read:
                world.tell(GroupSeen(world.log[position], world.machine.facts.log_token))
        elif move == "tick":
            world.tell(Tick())
        facts = world.machine.facts
        in_phase = facts.where(facts.policy).phase if facts.policy else 0
        if in_phase < len(facts.job.spec.phases):
            bound = max(Credits(p.max_staleness, p.groups_per_step).bound for p in facts.job.spec.phases)
            assert facts.ledger.in_flight <= bound
    world.run()
    assert transitions.name_of(world.state) == "succeeded"
    assert_balanced(world)
    results = [(each.point, each.domain) for each in world.job.evals]
    assert len(results) == len(set(results))
    assert all(each.n == each.attempted for each in world.job.evals)


def test_a_result_that_was_counted_but_not_written_is_announced_again():
    world = World()
    world.tell(Tick())
    world.publish_policy()
    old = type(world.job)()
    old.CopyFrom(world.job)
    while world.queue:
        world.rollout(next(iter(world.queue)))
        world.deliver()
        if any(key.startswith("eval/") for key in world.announced):
            break
    world.save()
    world.job.CopyFrom(old)  # the crash came after the books and before the job
    announced = set(world.announced)
    world.announced.clear()
    world.crash()
    assert {key for key in announced if key.startswith("eval/")} <= set(world.announced)
    assert isinstance(next(iter(world.announced.values())), EvalResult | StateChanged)


@pytest.mark.parametrize("state", list(transitions.ALLOWED))
def test_terminal_states_are_final(state):
    moves = [target for target in transitions.ALLOWED if transitions.may(state, target)]
    assert bool(moves) == (state not in transitions.TERMINAL)
