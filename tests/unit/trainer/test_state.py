import itertools
import json
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from temper.trainer.ranges import IndexSet
from temper.trainer.state import Arrival, Drop, Ledger, Phase, Verdict


def ledger(*phases, **kwargs):
    return Ledger(phases or (Phase(steps=3, groups_per_step=2, max_staleness=1, ages=True),), **kwargs)


def group(index, *, version=0, phase=0, dropped=None):
    return Arrival(str(index), index, f"j-{index}", phase, version, dropped)


def run_step(book, *, published=True):
    taken = book.take()
    assert taken
    book.commit(taken, published=published)
    return [arrival.index for arrival in taken]


def balance(book, seen):
    return book.consumed + sum(book.dropped.values()) + len(book.pending) == seen


def test_a_step_takes_the_oldest_groups_whatever_order_they_came_in():
    book = ledger()
    for index in (3, 1, 0, 2):
        book.arrive(group(index))
    assert run_step(book) == [0, 1]
    assert run_step(book) == [2, 3]


def test_nothing_is_taken_while_too_few_groups_are_there():
    book = ledger()
    book.arrive(group(0))
    assert book.take() == []


def test_a_duplicate_changes_nothing_before_and_after_settlement():
    book = ledger()
    assert book.arrive(group(0)) is Verdict.PENDING
    assert book.arrive(group(0)) is Verdict.DUPLICATE
    book.arrive(group(1))
    run_step(book)
    assert book.arrive(group(0)) is Verdict.DUPLICATE
    assert book.consumed == 2


def test_a_group_over_the_bound_is_dropped_on_arrival_and_not_before():
    book = ledger(version=5)
    assert book.arrive(group(0, version=4)) is Verdict.PENDING
    assert book.arrive(group(1, version=3)) is Verdict.DROPPED
    assert book.dropped == {Drop.STALE: 1}


def test_a_waiting_group_gets_stale_when_the_policy_moves_on():
    book = ledger(Phase(steps=9, groups_per_step=1, max_staleness=0, ages=True))
    book.arrive(group(0))
    book.arrive(group(1))
    run_step(book)
    assert book.take() == []
    assert book.dropped == {Drop.STALE: 1}


def test_at_staleness_zero_only_the_published_version_is_trained_on():
    book = ledger(Phase(steps=9, groups_per_step=1, max_staleness=0, ages=True), version=2)
    book.arrive(group(0, version=2))
    assert run_step(book) == [0]


def test_waiting_and_later_groups_of_a_quarantined_environment_are_revoked():
    book = ledger()
    book.arrive(Arrival("0", 0, "j-0", variant="bad"))
    book.arrive(Arrival("1", 1, "j-1", variant="good"))
    book.withdraw("bad")
    assert book.take() == []
    assert book.arrive(Arrival("2", 2, "j-2", variant="bad")) is Verdict.DROPPED
    assert book.dropped == {Drop.REVOKED: 2}
    book.readmit("bad")
    assert book.arrive(Arrival("3", 3, "j-3", variant="bad")) is Verdict.PENDING
    assert run_step(book) == [1, 3]


def test_groups_that_are_being_trained_on_when_the_quarantine_comes_are_consumed():
    book = ledger()
    for index in (0, 1):
        book.arrive(Arrival(str(index), index, f"j-{index}", variant="bad"))
    taken = book.take()
    book.withdraw("bad")
    book.commit(taken, published=True)
    assert (book.consumed, book.dropped) == (2, {})


def test_announced_steps_are_made_again_from_groups_that_were_quarantined_since():
    book = ledger()
    book.redo([("j-0", "j-1")])
    book.withdraw("bad")
    for index in range(4):
        book.arrive(Arrival(str(index), index, f"j-{index}", variant="bad"))
    assert run_step(book) == [0, 1]
    assert book.dropped == {Drop.REVOKED: 2}


def refilling(refills, **more):
    return ledger(Phase(steps=3, groups_per_step=2, max_staleness=1, ages=True, refills=refills), **more)


def flat(index, **more):
    return replace(group(index, **more), flat=True)


def test_groups_without_a_difference_are_dropped_up_to_the_limit_of_a_step():  # DAPO's dynamic sampling, bounded
    book = refilling(2)
    assert [book.arrive(flat(index)) for index in range(3)] == [
        Verdict.DROPPED,
        Verdict.DROPPED,
        Verdict.PENDING,
    ]
    assert book.dropped == {Drop.FLAT: 2}
    book.arrive(group(3))
    assert run_step(book) == [2, 3]
    assert book.arrive(flat(4, version=1)) is Verdict.DROPPED, "the next step has its own"
    assert balance(book, 5)


def test_without_dynamic_sampling_they_are_trained_on():
    book = refilling(0)
    assert book.arrive(flat(0)) is Verdict.PENDING


def test_groups_of_an_announced_step_are_not_refilled_after_a_crash():
    book = refilling(4)
    book.redo([("j-0", "j-1")])
    assert book.arrive(flat(0)) is Verdict.PENDING
    book.arrive(group(1))
    assert run_step(book) == [0, 1]


def test_demonstrations_never_get_stale():
    book = ledger(Phase(steps=9, groups_per_step=1, max_staleness=0, ages=False), version=7)
    assert book.arrive(group(0, version=0)) is Verdict.PENDING


def test_a_record_that_says_dropped_is_settled_with_its_reason():
    book = ledger()
    assert book.arrive(group(0, dropped=Drop.POISON)) is Verdict.DROPPED
    assert list(book.settled) == [(0, 0)]


def test_evaluation_records_move_the_offset_and_nothing_else():
    book = ledger()
    assert book.arrive(Arrival("a", None)) is Verdict.IGNORED
    assert book.offset == "a"
    assert len(book.settled) == 0


def test_the_offset_waits_for_the_oldest_unsettled_record():
    book = ledger()
    for index in (2, 0, 1):
        book.arrive(group(index))
    run_step(book)
    assert book.offset == ""  # group 2 came first and is still waiting
    book.arrive(group(3))
    run_step(book)
    assert book.offset == "3"


def test_groups_of_a_finished_phase_are_late():
    one = Phase(steps=1, groups_per_step=1, max_staleness=1, ages=False)
    book = ledger(one, one)
    book.arrive(group(0))
    book.arrive(group(1))
    run_step(book)
    assert book.phase == 1
    assert book.dropped == {Drop.LATE: 1}
    assert book.arrive(group(2)) is Verdict.DROPPED


def test_groups_of_a_later_phase_wait_for_it():
    one = Phase(steps=1, groups_per_step=1, max_staleness=1, ages=False)
    book = ledger(one, one)
    book.arrive(group(1, phase=1))
    assert book.take() == []
    book.arrive(group(0))
    assert run_step(book) == [0]
    assert run_step(book) == [1]
    assert book.finished


def test_after_the_last_step_everything_is_late():
    book = ledger(Phase(steps=1, groups_per_step=1, max_staleness=1, ages=True))
    book.arrive(group(0))
    book.arrive(group(1))
    run_step(book)
    assert book.finished
    assert book.take() == []
    assert book.arrive(group(2)) is Verdict.DROPPED
    assert balance(book, 3)


def test_announced_steps_are_made_again_from_the_same_groups_in_the_same_order():
    book = ledger()
    book.redo([("j-3", "j-1"), ("j-0", "j-2")])
    for index in range(3):
        book.arrive(group(index))
    assert book.take() == []  # j-3 was announced and has not been read again yet
    book.arrive(group(3))
    assert run_step(book) == [3, 1]
    assert run_step(book) == [0, 2]
    assert book.redoing == 0


def test_an_announced_group_is_not_dropped_as_stale_when_it_is_read_again():
    book = ledger(version=9)
    book.redo([("j-0", "j-1")])
    assert book.arrive(group(0, version=1)) is Verdict.PENDING
    assert book.arrive(group(2, version=1)) is Verdict.DROPPED


def test_what_was_told_as_dropped_before_a_crash_is_not_trained_on_after_it():
    book = ledger()
    for index in range(4):
        book.arrive(group(index))
    before = book.facts()
    book.drop(0, Drop.CORRUPT)
    assert run_step(book) == [1, 2]
    told = book.facts()
    again = Ledger.from_facts(book.phases, before)
    again.redo([("j-1", "j-2")])
    again.recall(told["settled"], told["dropped"])
    for index in range(4):
        again.arrive(group(index))
    assert run_step(again) == [1, 2]
    assert again.facts() == told
    assert list(again.pending) == [3]
    assert again.balanced


def test_drops_that_were_told_after_the_last_step_hold_at_once():
    book = ledger()
    told = ledger()
    told.arrive(group(0, dropped=Drop.POISON))
    book.recall(told.settled, told.dropped)
    assert book.balanced
    assert book.arrive(group(0, dropped=Drop.POISON)) is Verdict.DUPLICATE
    assert book.facts() == told.facts()


def test_upcoming_groups_are_those_that_will_be_fresh_one_version_later():
    book = ledger(version=1)
    for index, version in ((0, 0), (1, 1), (2, 0), (3, 1), (4, 1), (5, 1)):
        book.arrive(group(index, version=version))
    taken = book.take()
    assert [arrival.index for arrival in taken] == [0, 1]
    assert [arrival.index for arrival in book.upcoming(taken)] == [3, 4]
    book.redo([("j-0", "j-1"), ("j-2", "j-5")])
    assert [arrival.index for arrival in book.upcoming(book.take())] == [2, 5]


def test_a_step_without_publication_keeps_the_version():
    book = ledger()
    for index in range(4):
        book.arrive(group(index))
    run_step(book, published=False)
    assert (book.step, book.version) == (1, 0)


@given(st.lists(st.integers(0, 40), max_size=60))
def test_an_index_set_equals_a_set(indexes):
    ours, theirs = IndexSet(), set()
    for index in indexes:
        assert ours.add(index) is (index not in theirs)
        theirs.add(index)
    assert {i for i in range(42) if i in ours} == theirs
    assert len(ours) == len(theirs)
    spans = list(ours)
    assert all(b[0] > a[1] + 1 for a, b in itertools.pairwise(spans))
    assert IndexSet(spans) == ours


class LedgerMachine(RuleBasedStateMachine):
    """Arrivals in any order with repeats, drops, steps and crashes; the log keeps everything that was appended."""

    @initialize(eta=st.integers(0, 2), size=st.integers(1, 3))
    def start(self, eta, size):
        self.phases = (
            Phase(steps=4, groups_per_step=size, max_staleness=0, ages=False),
            Phase(steps=6, groups_per_step=size, max_staleness=eta, ages=True),
        )
        self.book = Ledger(self.phases)
        self.log = []
        self.read = 0
        self.trained = {}
        self.announced = []
        self.snapshot = (json.dumps(self.book.facts()), 0)
        self.told, self.told_dropped = IndexSet(), Counter()

    @rule(
        index=st.integers(0, 60), lag=st.integers(0, 3), lost=st.sampled_from([None, None, None, Drop.POISON])
    )
    def append(self, index, lag, lost):
        if any(a.index == index for a in self.log):
            index = next(a.index for a in self.log if a.index == index)
            known = next(a for a in self.log if a.index == index)
            self.log.append(
                Arrival(
                    f"{len(self.log):06d}",
                    index,
                    known.group_id,
                    known.phase,
                    known.min_version,
                    known.dropped,
                    known.variant,
                )
            )
            return
        version = max(0, self.book.version - lag)
        variant = "abc"[index % 3]
        at, phase = f"{len(self.log):06d}", min(self.book.phase, 1)
        self.log.append(Arrival(at, index, f"j-{index}", phase, version, lost, variant))

    @rule(variant=st.sampled_from("abc"), withdrawn=st.booleans())
    def quarantine(self, variant, withdrawn):
        if withdrawn:
            self.book.withdraw(variant)
        else:
            self.book.readmit(variant)

    @rule()
    def append_evaluation(self):
        self.log.append(Arrival(f"{len(self.log):06d}", None))

    @precondition(lambda self: self.read < len(self.log))
    @rule(count=st.integers(1, 5))
    def read_on(self, count):
        for arrival in self.log[self.read : self.read + count]:
            self.book.arrive(arrival)
        self.read = min(self.read + count, len(self.log))

    @rule(published=st.booleans())
    def train(self, published):
        taken = self.book.take()
        if not taken:
            return
        phase = self.book.current
        ids = tuple(a.group_id for a in taken)
        again = self.book.step < len(self.announced)
        if again:
            old_ids, published = self.announced[self.book.step]
            assert ids == old_ids
        else:
            assert list(ids) == sorted(ids, key=lambda g: int(g[2:]))
            assert all(a.variant not in self.book.withdrawn for a in taken)
            assert all(not phase.ages or self.book.staleness(a) <= phase.max_staleness for a in taken)
            self.announced.append((ids, published))
            for group_id in ids:
                assert group_id not in self.trained, "no group trains in two different steps"
                self.trained[group_id] = self.book.step
            assert not any(a.index is not None and a.index in self.told for a in taken), (
                "what was told as dropped is never trained on"
            )
        assert len(ids) == phase.groups_per_step
        self.book.commit(taken, published=published)
        self.tell()

    @rule()
    def tell(self):
        """As the policy record: nothing that was told before is taken back."""
        if self.book.step < len(self.announced):
            return
        told = IndexSet(self.book.settled)
        assert all(index in told for first, last in self.told for index in range(first, last + 1))
        assert not self.told_dropped - self.book.dropped
        self.told, self.told_dropped = told, Counter(self.book.dropped)

    @rule()
    def save(self):
        self.snapshot = (json.dumps(self.book.facts()), self.book.step)

    @rule()
    def crash(self):
        facts, step = self.snapshot
        withdrawn = self.book.withdrawn
        self.book = Ledger.from_facts(self.phases, json.loads(facts))
        for variant in withdrawn:  # the bucket says so again
            self.book.withdraw(variant)
        self.book.redo(ids for ids, _ in self.announced[step:])
        self.book.recall(self.told, self.told_dropped)
        behind = [i for i, a in enumerate(self.log) if a.token > self.book.offset]
        self.read = behind[0] if behind else len(self.log)

    @invariant()
    def the_ledger_balances(self):
        book = self.book
        assert len(book.settled) == book.consumed + sum(book.dropped.values())
        assert all(index not in book.settled for index in book.pending)

    @invariant()
    def what_was_read_is_settled_or_pending(self):
        book = self.book
        for arrival in self.log[: self.read]:
            known = (book.settled, book.pending, book._told)
            assert arrival.index is None or any(arrival.index in place for place in known)

    @invariant()
    def everything_up_to_the_offset_is_settled(self):
        for arrival in self.log:
            if arrival.token <= self.book.offset and arrival.index is not None:
                assert arrival.index in self.book.settled


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def test_facts_survive_json():
    book = ledger()
    for index in (0, 1, 5):
        book.arrive(group(index, dropped=Drop.POISON if index == 5 else None))
    run_step(book)
    again = Ledger.from_facts(book.phases, json.loads(json.dumps(book.facts())))
    assert again.facts() == book.facts()


@pytest.mark.parametrize("reason", list(Drop))
def test_reasons_carry_the_names_of_the_contract(reason):
    from temper.api.common.v1.common_pb2 import DropReason

    assert reason.value in DropReason.keys()  # noqa: SIM118 - an enum wrapper is no mapping
