"""Verdicts, rollbacks and what follows from them: rules of the gates, and the machine that obeys them, killed anywhere."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.scheduler.jobs import env, job, policy_phase, record_of, spec

from temper.api.common.v1.common_pb2 import Purpose
from temper.api.job.v1.job_pb2 import GateVerdict, JobLedger, JobState, Notice, StateChanged
from temper.api.job.v1.spec_pb2 import GateSpec
from temper.api.trainer.v1.trainer_pb2 import PolicyRecord, TrainingState
from temper.scheduler import defaults
from temper.scheduler.evaluation import Tally
from temper.scheduler.facts import JobFacts
from temper.scheduler.gates import comparison, rates
from temper.scheduler.gates.collapse import Collapses, Track
from temper.scheduler.gates.gate import FAIL, PASS, TOO_LITTLE, Gate
from temper.scheduler.gates.settings import filled_in, looks, rolls_back
from temper.scheduler.signals import (
    Announce,
    GroupSeen,
    Hold,
    Issue,
    JobSeen,
    Order,
    PolicySeen,
    Resolve,
    Resolved,
    StartTrainer,
    Tick,
)
from temper.scheduler.state import JobMachine
from temper.scheduler.validate import Known, problems

NOW = 1_700_000_000.0
KNOWN = Known(("grpo",), (), ("torch",))


def tally(solved, tasks=48):
    """An evaluation of `tasks` tasks, the first `solved` of them right."""
    made = Tally(groups=1, attempted=tasks, n=tasks, solved=solved, tasks=tasks)
    made.pass_sums = {"1": [float(solved), tasks]} if tasks else {}
    for task in range(tasks):
        made.rates = rates.put(made.rates, task, float(task < solved))
    return made


def played(chance, domains, rate=0.8):
    """An evaluation of many domains that are equally good."""
    found = {}
    for number in range(domains):
        right = [chance.random() < rate for _ in range(48)]
        found[f"d{number}"] = each = tally(sum(right), 0)
        each.n = each.tasks = 48
        each.pass_sums = {"1": [float(sum(right)), 48]}
        each.rates = "".join("f0" if one else "00" for one in right)
    return found


def gate(**changes):
    made = spec()
    made.eval.every = 2
    made.gates.CopyFrom(filled_in(GateSpec(**changes)))
    return Gate(made)


# ---------------------------------------------------------------- statistics


@given(st.dictionaries(st.integers(0, 60), st.integers(0, 8), min_size=1))
def test_rates_of_tasks_are_kept_exactly_and_unknown_ones_are_not_zero(solved):
    text = ""
    for task, count in solved.items():
        text = rates.put(text, task, count / 8)
    found = rates.shares(text)
    assert len(found) == max(solved) + 1
    assert all(found[task] == (solved[task] / 8 if task in solved else None) for task in range(len(found)))
    assert rates.pairs(text, text) == [0.0] * len(solved)


def test_a_paired_comparison_is_the_one_of_agresti_and_min():
    # 60 tasks: 10 lost, 2 gained. (b - c) / (N + 2); ((b + c + 1) - (b - c)² / (N + 2)) / (N + 2)²
    change = comparison.paired([-1.0] * 10 + [1.0] * 2 + [0.0] * 48)
    assert change.mean == pytest.approx(-8 / 62)
    assert change.error == pytest.approx(math.sqrt(13 - 64 / 62) / 62)
    assert comparison.paired([0.0] * 50).error > 0, "a set without variance still has an error"


def test_pairs_see_what_shares_alone_do_not():
    alone = comparison.unpaired((0.5, 48), (0.35, 48))
    lost = [-1.0] * 7 + [0.0] * 41
    assert comparison.paired(lost).surprise(0.0) < 0.05 < alone.surprise(0.0)


def test_several_domains_at_one_look_are_holm():
    surprises = {"a": 0.001, "b": 0.012, "c": 0.013, "d": 0.5}
    assert comparison.rejected(surprises, 0.05) == {"a", "b", "c"}
    assert comparison.rejected({"a": 0.02, "b": 0.02, "c": 0.02, "d": 0.5}, 0.05) == set()


def test_a_job_whose_domains_stay_as_they_are_is_rarely_stopped():
    """A hundred domains, four looks: the chance of a wrong verdict is that of the whole job, not of each of 400 tests."""
    chance, wrong = random.Random(5), 0
    for _ in range(20):
        watched = gate(max_drop=0.0)
        wrong += any(
            watched.judge(f"p{look}", look, look, played(chance, 100)).verdict == FAIL for look in range(5)
        )
    assert wrong <= 4, "of 20 jobs at .05 each, five or more are a chance of 1 in 400"


# ---------------------------------------------------------------- verdicts


@pytest.mark.parametrize(
    ("solved", "tasks", "verdict"),
    [(48, 48, PASS), (47, 48, TOO_LITTLE), (30, 48, FAIL), (8, 8, TOO_LITTLE), (0, 0, TOO_LITTLE)],
)
def test_min_pass_needs_the_whole_interval_above_the_bound(solved, tasks, verdict):
    said = gate(min_pass={"calc": 0.9}).judge("step-2", 2, 2, {"calc": tally(solved, tasks)})
    assert said.verdict == verdict
    assert all(math.isfinite(each) for check in said.checks for each in (check.value, check.low, check.high))


def test_a_domain_that_fell_fails_the_whole_evaluation_by_name():
    watched = gate(max_drop=0.1)
    assert watched.judge("before", 0, 0, {"calc": tally(46), "sums": tally(40)}).verdict == PASS
    said = watched.judge("step-2", 2, 2, {"calc": tally(0), "sums": tally(40)})
    assert said.verdict == FAIL
    assert [(each.domain, each.verdict) for each in said.checks] == [("calc", FAIL), ("sums", PASS)]
    assert said.message.startswith("calc: pass@1 moved by -0.9")
    assert watched.accepted_step == 0, "what failed is not what later ones are compared with"


def test_a_small_fall_passes_and_many_of_them_are_seen_against_the_best():
    watched, best = gate(max_drop=0.15), gate(max_drop=0.15, against="best")
    last = ""
    for each in (watched, best):
        for step, solved in enumerate((46, 42, 38, 34, 30)):
            last = each.judge(f"p{step}", step, step, {"calc": tally(solved)}).verdict
        if each is watched:
            assert last == PASS
    assert last == FAIL


def test_a_fall_that_may_be_chance_is_neither_accepted_nor_acted_on():
    watched = gate(max_drop=0.1)
    watched.judge("before", 0, 0, {"calc": tally(9, 24)})
    said = watched.judge("step-2", 2, 2, {"calc": tally(4, 24)})
    assert said.verdict == TOO_LITTLE
    assert watched.accepted_step == 0
    assert watched.judge("step-4", 4, 4, {"calc": tally(0, 24)}).checks[0].reference == "before"


def test_without_a_reference_there_is_nothing_to_fall_from():
    assert gate(max_drop=0.1).judge("step-2", 2, 2, {"calc": tally(3)}).verdict == PASS


def test_against_before_stays_with_the_start():
    watched = gate(max_drop=0.1, against="before")
    watched.judge("before", 0, 0, {"calc": tally(20)})
    watched.judge("step-2", 2, 2, {"calc": tally(48)})
    assert watched.judge("step-4", 4, 4, {"calc": tally(20)}).verdict == PASS


def test_every_look_has_its_part_of_the_error():
    assert looks(spec(eval={"every": 1, "after": True})) == 4
    assert looks(spec(eval={"every": 0, "after": True})) == 1
    assert looks(spec(eval={"every": 3, "after": False})) == 1


@given(st.lists(st.tuples(st.integers(0, 48), st.booleans(), st.booleans()), max_size=12))
@settings(max_examples=30)
def test_a_gate_that_is_saved_and_restored_goes_on_bit_for_bit(events):
    one, other = gate(max_drop=0.1, action="rollback"), gate(max_drop=0.1, action="rollback")
    for step, (solved, orders, restores) in enumerate(events):
        for each in (one, other):
            each.judge(f"p{step}", step, step, {"calc": tally(solved)})
            if orders:
                each.order(f"p{step}")
                each.carried_out(each.orders, [f"p{step + 1}"])
        if restores:
            saved = json.loads(json.dumps(other.state()))
            other = gate(max_drop=0.1, action="rollback")
            other.resume(saved)
        assert one.state() == other.state()
        assert one.record("j", 1, [7]) == other.record("j", 1, [7])


# ---------------------------------------------------------------- collapse


def test_a_domain_that_loses_everything_is_told_once_and_again_after_a_rollback():
    seen = Collapses()
    for _ in range(40):
        seen.observe("products", 0.96, flat=False)
        seen.observe("calc", 0.96, flat=False)
    told = []
    for number in range(30):
        seen.observe("products", 0.0, flat=True)
        seen.observe("calc", 0.9, flat=False)
        told += [(number, name) for name in seen.news(8)]
    assert told == [(7, "products")]
    seen.renew()
    for _ in range(8):
        seen.observe("products", 0.0, flat=True)
    assert list(seen.news(8)) == ["products"]


@pytest.mark.parametrize("rate", [0.3, 0.5, 0.8, 0.95])
def test_a_domain_that_stays_as_good_as_it_is_is_never_told(rate):
    chance, track = random.Random(3), Track()
    for _ in range(2000):
        solved = sum(chance.random() < rate for _ in range(8)) / 8
        track.observe(solved, flat=solved in (0.0, 1.0))
        assert not track.fallen(8)


def test_a_domain_that_never_learned_cannot_collapse():
    track = Track()
    for _ in range(500):
        track.observe(0.0, flat=True)
    assert not track.fallen(8)


def test_groups_that_fail_but_differ_still_push_back():
    track = Track()
    for _ in range(40):
        track.observe(0.9, flat=False)
    for _ in range(100):
        track.observe(0.0, flat=False)
        assert not track.fallen(8)


def test_where_many_tasks_are_hopeless_a_collapse_takes_more_groups():
    chance, needed = random.Random(11), {}
    for hopeless in (0.0, 0.3, 0.6):
        track = Track()
        for _ in range(400):
            dead = chance.random() < hopeless
            track.observe(0.0 if dead else 0.8, flat=dead)
        track.observe(0.8, flat=False)
        needed[hopeless] = next(
            run for run in range(1, 99) if track.observe(0.0, flat=True) or track.fallen(8)
        )
    assert 8 == needed[0.0] < needed[0.3] < needed[0.6] < 60


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.booleans()), max_size=60))
@settings(max_examples=30)
def test_tracks_that_are_saved_and_restored_go_on_bit_for_bit(events):
    one, other = Collapses(), Collapses()
    for success, restores in events:
        for each in (one, other):
            each.observe("calc", success, flat=success != 0.5)
        assert list(one.news(4)) == list(other.news(4))
        if restores:
            saved = json.loads(json.dumps(other.state()))
            other = Collapses()
            other.resume(saved)
        assert one.state() == other.state()


# ---------------------------------------------------------------- the machine


class Peers:
    """A machine with scripted peers: the test says how good each domain is, and kills the machine where it likes."""

    def __init__(self, *, fragile=None, steps=12, evaluate=2, **gates):
        made = job(
            phases=[policy_phase(steps=steps, groupsPerStep=2)],
            eval={
                "tasksPerDomain": 24,
                "every": evaluate,
                "before": True,
                "after": True,
                "samplesPerTask": 1,
                "temperature": 1,
            },
            gates=gates,
        )
        made.spec.CopyFrom(defaults.effective(made.spec))
        self.chance = fragile
        self.machine = JobMachine(JobFacts(made, fence=1))
        self.stored, self.books = made, None
        self.policy: Any = None
        self.quality = {"calc": 1.0, "sums": 1.0}
        self.log, self.owed, self.orders, self.told = [], [], [], {}
        self.started = False

    def crash(self):
        """Everything that was not written is gone."""
        self.machine = JobMachine(JobFacts(self.stored, fence=self.machine.facts.fence + 1))
        if self.books is not None:
            self.machine.facts.restore(JobLedger.FromString(self.books))
        if self.policy is not None:
            self.machine.facts.take_policy(self.policy)
        token = self.machine.facts.log_token
        for place, record in enumerate(self.log):
            if not token or place > int(token):
                self.machine.facts.take_group(record, str(place))
        self.perform(self.machine.recover(NOW))

    def maybe_crash(self):
        return self.chance is not None and self.chance.random() < 0.05

    def write(self):
        """KV `jobs`, after announcements."""
        facts = self.machine.facts
        state = self.stored.state if self.stored.state == JobState.JOB_STATE_PAUSED else facts.job.state
        kept = (list(self.stored.rollbacks_asked), self.stored.held)
        reason = self.stored.reason if state == JobState.JOB_STATE_PAUSED else facts.job.reason
        self.stored.CopyFrom(facts.job)
        self.stored.state, self.stored.reason = state, reason
        del self.stored.rollbacks_asked[:]
        self.stored.rollbacks_asked.extend(kept[0])
        self.stored.held = kept[1]
        facts.saved()

    def perform(self, effects):
        facts = self.machine.facts
        if any(isinstance(each, Issue | StartTrainer | Order | Hold) for each in effects):
            self.books = facts.save().SerializeToString()
        for effect in effects:
            if self.maybe_crash():
                self.crash()
                return
            match effect:
                case Announce(key, payload):
                    self.told.setdefault(key, payload)
                case Order():
                    self.orders.append(facts.gate_record())
                case Hold(key, reason):
                    if self.stored.held != key:
                        self.stored.held, self.stored.state = key, JobState.JOB_STATE_PAUSED
                        self.stored.reason = reason
                case Resolve():
                    self.tell(Resolved(tuple(env(each.env) for each in facts.job.spec.domains)))
                case StartTrainer():
                    self.policy = self.policy or PolicyRecord(
                        job_id=facts.job.id, state=TrainingState.TRAINING_STATE_RUNNING, fence=1
                    )
                case _:
                    assert isinstance(effect, Issue)
                    known = {each.group_id for each in (*self.owed, *self.log)}
                    self.owed += [each for each in effect.commands if each.group_id not in known]
        if any(isinstance(each, Announce) for each in effects):
            self.write()
            if self.maybe_crash():
                self.crash()

    def tell(self, signal):
        self.perform(self.machine.handle(signal, NOW))

    def round(self):
        """Everybody does what is owed, once."""
        self.tell(Tick())
        self.tell(JobSeen(self.stored))
        owed, self.owed = self.owed, []
        for command in owed:
            good = self.quality[command.domain]
            record = record_of(command, solved=good >= 1.0)
            self.log.append(record)
            self.tell(GroupSeen(record, str(len(self.log) - 1)))
        if self.policy is not None:
            self.step()
            self.tell(PolicySeen(self.policy))

    def step(self):
        """The trainer carries out an order, or takes a step of all groups that it has not seen."""
        order = self.orders[-1] if self.orders else None
        trained = [each for each in self.log if each.purpose == Purpose.PURPOSE_TRAIN]
        total = sum(phase.steps for phase in self.machine.facts.job.spec.phases)
        if order is not None and order.rollbacks > self.policy.rollbacks:
            self.policy.rollbacks = order.rollbacks
            self.policy.version += 1
            self.policy.step += 1
            self.policy.line_start = self.policy.version
            self.on_rollback(order)
        elif len(trained) >= 2 * (self.consumed + 1) and self.policy.step < total:
            self.consumed += 1
            self.policy.step += 1
            self.policy.version += 1
        self.policy.consumed_groups = 2 * self.consumed
        del self.policy.settled[:]
        if self.consumed:
            self.policy.settled.add(first=0, last=2 * self.consumed - 1)
        if self.policy.step >= total:
            self.policy.state = TrainingState.TRAINING_STATE_FINISHED

    consumed = 0

    def on_rollback(self, order):
        self.quality = {"calc": 1.0, "sums": 1.0}

    def run(self, rounds=80, until=lambda self: False):
        for number in range(rounds):
            self.round()
            self.at(number)
            if self.machine.over or until(self):
                break
        return self

    def at(self, number):
        """For subclasses."""

    @property
    def verdicts(self):
        return {key: each for key, each in self.told.items() if isinstance(each, GateVerdict)}


class Collapsing(Peers):
    """`calc` is lost after a while."""

    lost_at = 8

    def at(self, number):
        if number == self.lost_at and not self.policy.rollbacks:
            self.quality["calc"] = 0.0


def test_an_evaluation_that_fails_sends_training_back_once_and_the_job_ends_well():
    peers = Collapsing(action="rollback", maxDrop=0.1, onCollapse="off").run()
    assert peers.machine.facts.job.state == JobState.JOB_STATE_SUCCEEDED
    failed = [each for each in peers.verdicts.values() if each.verdict == FAIL]
    assert [(each.action, each.rollback) for each in failed] == [("rollback", 1)]
    assert peers.policy.rollbacks == 1
    assert peers.orders[-1].rollback_step < failed[0].step
    assert [each.code for each in peers.told.values() if isinstance(each, Notice)].count("rolled_back") == 1


def test_a_collapse_in_training_is_enough():
    class Later(Collapsing):
        lost_at = 40  # calc has a quarter of the groups, and a best needs sixteen of them

    peers = Later(evaluate=30, steps=80, onCollapse="rollback", collapseGroups=4).run(300)
    collapse = peers.verdicts["gate/collapse-1"]
    assert (collapse.action, collapse.checks[0].domain, collapse.checks[0].bound) == (
        "rollback",
        "calc",
        "collapse",
    )
    assert peers.machine.facts.job.state == JobState.JOB_STATE_SUCCEEDED


def test_an_alarm_changes_nothing():
    peers = Collapsing(action="alarm", maxDrop=0.1).run()
    assert any(each.action == "alarm" for each in peers.verdicts.values())
    assert peers.policy.rollbacks == 0
    assert peers.machine.facts.job.state == JobState.JOB_STATE_SUCCEEDED


def test_a_hold_pauses_once_until_a_person_goes_on_or_back():
    peers = Collapsing(action="hold", maxDrop=0.1).run(until=lambda self: self.stored.held != "")
    assert peers.stored.state == JobState.JOB_STATE_PAUSED
    assert peers.stored.reason.startswith("held at step-")
    peers.stored.state, peers.stored.reason = JobState.JOB_STATE_RUNNING, ""
    held = peers.stored.held
    peers.crash()
    peers.round()
    assert peers.stored.held == held
    assert peers.stored.state == JobState.JOB_STATE_RUNNING, "a verdict pauses once, also after a crash"


def test_a_stop_fails_the_job_and_names_the_domain():
    peers = Collapsing(action="stop", maxDrop=0.1).run()
    assert peers.machine.facts.job.state == JobState.JOB_STATE_FAILED
    assert "calc: pass@1 moved by -" in peers.machine.facts.job.reason
    (end,) = [each for key, each in peers.told.items() if key == "state/failed"]
    assert isinstance(end, StateChanged)


def test_rollbacks_are_bounded():
    class Hopeless(Peers):
        def at(self, number):
            self.quality["calc"] = 0.0 if number > 3 else 1.0

        def on_rollback(self, order):
            pass

    peers = Hopeless(steps=40, action="rollback", maxDrop=0.1, maxRollbacks=2, onCollapse="off").run(200)
    assert peers.policy.rollbacks == 2
    assert peers.machine.facts.job.state == JobState.JOB_STATE_FAILED
    assert "2 rollbacks were made already" in peers.machine.facts.job.reason


def test_a_user_s_wish_to_go_back_is_ordered_once():
    peers = Peers(action="rollback", maxDrop=0.5).run(
        until=lambda self: self.policy and self.policy.step == 5
    )
    peers.stored.rollbacks_asked.append("I saw odd answers")
    peers.run(3)
    peers.crash()
    peers.run(3)
    assert peers.policy.rollbacks == 1
    assert peers.orders[-1].reason == "asked-1: I saw odd answers"


def test_an_evaluation_across_a_rollback_has_no_verdict():
    peers = Peers(action="rollback", maxDrop=0.5).run(
        until=lambda self: self.policy and self.policy.step == 5
    )
    facts = peers.machine.facts
    facts.gate.order("test")
    said = facts.gate.judge("step-9", 9, 9, {"calc": tally(48)})
    assert said.verdict == TOO_LITTLE
    facts.gate.carried_out(1, ["step-10"])
    assert facts.gate.judge("step-10", 10, 10, {"calc": tally(48)}).verdict == TOO_LITTLE
    assert facts.gate.judge("step-12", 12, 12, {"calc": tally(48)}).verdict == PASS


@given(st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_killed_anywhere_between_verdict_and_rollback_the_same_comes_out(seed):
    peers = Collapsing(fragile=random.Random(seed), action="rollback", maxDrop=0.1, onCollapse="off").run(200)
    assert peers.machine.facts.job.state == JobState.JOB_STATE_SUCCEEDED
    assert peers.policy.rollbacks == 1
    failed = [each for each in peers.verdicts.values() if each.verdict == FAIL]
    assert len(failed) == 1
    assert [each.verdict for each in peers.stored.gates].count(FAIL) == 1
    points = [each.point for each in peers.stored.gates]
    assert len(points) == len(set(points))
    peers.machine.facts.ledger.check()


# ---------------------------------------------------------------- what a job may say


@pytest.mark.parametrize(
    ("gates", "every", "field"),
    [
        ({"min_pass": {"clac": 0.5}}, 2, "gates.min_pass.clac"),
        ({"max_drop": 0.1}, 0, "gates"),
        ({"action": "rollback"}, 2, "gates.action"),
        ({"lr_factor": 0.5, "max_drop": 0.1}, 2, "gates.lr_factor"),
        ({"max_rollbacks": 1, "max_drop": 0.1}, 2, "gates.max_rollbacks"),
        ({"against": "best", "min_pass": {"calc": 0.5}}, 2, "gates.against"),
        ({"on_collapse": "off", "collapse_groups": 4}, 0, "gates.collapse_groups"),
        ({"on_collapse": "rollback"}, 0, ""),
        ({"on_collapse": "rollback", "max_rollbacks": 1, "collapse_groups": 4}, 0, ""),
        ({"action": "rollback", "max_drop": 0.1, "lr_factor": 0.5}, 2, ""),
    ],
)
def test_gates_that_could_do_nothing_are_refused(gates, every, field):
    made = spec()
    made.eval.every = every
    made.gates.CopyFrom(GateSpec(**gates))
    found = [
        each.field for each in problems(defaults.effective(made), KNOWN) if each.field.startswith("gates")
    ]
    assert found == ([field] if field else [])


def test_a_job_without_gates_only_tells_of_collapses():
    made = defaults.effective(spec()).gates
    assert (made.action, made.on_collapse) == ("alarm", "alarm")
    assert not rolls_back(made)
    assert not Gate(defaults.effective(spec())).active
