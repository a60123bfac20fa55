from dataclasses import replace

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from temper.rollout.state import Job, Offer, Worker

JOBS = st.sampled_from(["a", "b", "c"])
VERSIONS = st.integers(0, 6)


def offer(job: str = "a", index: int = 0, version: int = 0, *, weights: bool = True) -> Offer:
    return Offer(f"{job}-{index}", job, version, needs_weights=weights)


def test_a_group_starts_once_its_version_serves():
    worker = Worker(slots=2, policies=1)
    assert not worker.offer(offer(version=1))
    worker.announce("a", 1, "d", fence=1)
    assert worker.wanted("a") == 1
    assert not worker.offer(offer(version=1))
    worker.loaded("a", 1)
    assert worker.offer(offer(version=1))
    assert worker.wanted("a") is None


def test_a_demonstration_needs_the_publication_and_not_the_weights():
    worker = Worker(slots=2, policies=1)
    assert not worker.offer(offer(weights=False))
    worker.announce("a", 0, "d", fence=1)
    assert worker.offer(offer(weights=False))


def test_a_version_that_will_not_load_refuses_what_needs_it_and_serves_the_rest():
    worker = Worker(slots=2, policies=1)
    worker.announce("a", 0, "d", fence=1)
    worker.loaded("a", 0)
    worker.announce("a", 1, "d", fence=1)
    worker.load_failed("a", 1, "checksum")
    assert worker.wanted("a") is None
    assert worker.complaints() == {"a": "version 1: checksum"}
    assert worker.offer(offer(index=1, version=0))
    assert not worker.offer(offer(index=2, version=1))
    worker.announce("a", 2, "d", fence=1)
    assert worker.wanted("a") == 2


def test_a_version_published_again_with_other_bytes_gets_another_chance():
    worker = Worker(slots=2, policies=1)
    assert worker.announce("a", 0, "torn", fence=1)
    worker.load_failed("a", 0, "checksum")
    assert not worker.announce("a", 0, "torn", fence=1)
    assert worker.wanted("a") is None
    assert worker.announce("a", 0, "whole", fence=1)
    assert worker.wanted("a") == 0
    worker.loaded("a", 0)
    assert not worker.announce("a", 0, "again", fence=2)


def test_the_least_recently_used_idle_engine_makes_room():
    worker = Worker(slots=4, policies=1)
    for job in "ab":
        worker.announce(job, 0, "d", fence=1)
        worker.loaded(job, 0)
    worker.offer(offer("a"))
    worker.offer(offer("b"))
    assert worker.surplus() is None
    worker.finish("a-0")
    assert worker.surplus() == "a"
    worker.engine_lost("a")
    assert worker.surplus() is None
    assert worker.wanted("a") == 0


class WorkerMachine(RuleBasedStateMachine):
    """Random histories of publications, loads, failures and groups."""

    def __init__(self) -> None:
        super().__init__()
        self.worker = Worker(slots=4, policies=2)
        self.started: dict[str, int] = {}

    @rule(job=JOBS, version=VERSIONS, digest=st.sampled_from("xy"), fence=st.integers(0, 3))
    def publish(self, job: str, version: int, digest: str, fence: int):
        before = replace(self.worker.jobs.get(job, Job()))
        was_bad = version in before.failed
        news = self.worker.announce(job, version, digest, fence)
        again = version == before.announced and was_bad and digest != before.digest
        assert news == (fence >= before.fence and (version > before.announced or again))
        if news and self.worker.jobs[job].served < version:
            assert self.worker.wanted(job) == version

    @rule(job=JOBS, works=st.booleans())
    def load(self, job: str, works: bool):
        wanted = self.worker.wanted(job)
        if wanted is None:
            return
        if works:
            self.worker.loaded(job, wanted)
            assert self.worker.wanted(job) is None
        else:
            self.worker.load_failed(job, wanted, "broken")
            assert self.worker.wanted(job) is None

    @rule(job=JOBS, index=st.integers(0, 5), version=VERSIONS, weights=st.booleans())
    def take(self, job: str, index: int, version: int, weights: bool):
        wanted = offer(job, index, version, weights=weights)
        started = self.worker.offer(wanted)
        state = self.worker.jobs[job]
        have = state.served if weights else state.announced
        assert started == (have >= version)
        if started:
            assert self.worker.running[wanted.group_id] == wanted

    @rule(job=JOBS, index=st.integers(0, 5))
    def finish(self, job: str, index: int):
        self.worker.finish(f"{job}-{index}")
        assert f"{job}-{index}" not in self.worker.running

    @rule()
    def evict(self):
        job = self.worker.surplus()
        if job is not None:
            assert not any(each.job_id == job and each.needs_weights for each in self.worker.running.values())
            self.worker.engine_lost(job)

    @invariant()
    def served_was_announced(self):
        for state in self.worker.jobs.values():
            assert state.served <= state.announced
            assert all(bad > state.served for bad in state.failed) or state.served == -1

    @invariant()
    def an_idle_engine_over_the_limit_is_named(self):
        held = [job for job, state in self.worker.jobs.items() if state.served >= 0]
        busy = {each.job_id for each in self.worker.running.values() if each.needs_weights}
        assert (self.worker.surplus() is not None) == (len(held) > 2 and bool(set(held) - busy))


TestWorkerMachine = WorkerMachine.TestCase
TestWorkerMachine.settings = settings(deadline=None, max_examples=60)  # a busy machine is no failure


def test_miles_1805_miles_1724_an_engine_that_came_back_plays_nothing_before_it_has_the_published_version():
    worker = Worker(slots=2, policies=1)
    worker.announce("a", 3, "d", fence=1)
    worker.loaded("a", 3)
    assert worker.offer(offer(version=2))
    worker.engine_lost("a")
    assert not worker.offer(offer(index=1, version=0))
    worker.announce("a", 5, "e", fence=1)
    worker.loaded("a", 4)  # loading had begun before the announcement
    assert not worker.offer(offer(index=1, version=0))
    worker.loaded("a", 5)
    assert worker.offer(offer(index=1, version=0))
    worker.announce("a", 6, "f", fence=1)
    assert worker.offer(offer(index=2, version=5))  # one that has caught up may be a little behind


def test_a_worker_past_the_staleness_bound_takes_nothing_and_says_why():
    worker = Worker(slots=4, policies=2)
    worker.announce("a", 0, "d", fence=1)
    worker.loaded("a", 0)
    bounded = replace(offer(), max_staleness=1)
    assert worker.offer(bounded)
    worker.announce("a", 1, "e", fence=1)
    assert worker.offer(bounded)
    assert not worker.refuses()
    worker.announce("a", 2, "f", fence=1)
    worker.load_failed("a", 2, "checksum")
    assert not worker.offer(bounded)
    assert worker.offer(offer(index=7))  # an evaluation names its version and has no bound
    assert worker.refuses()
    assert worker.overdue() == {"a": "serves version 0, 2 is published, the staleness bound is 1"}
    worker.announce("b", 0, "d", fence=1)
    worker.loaded("b", 0)
    assert not worker.refuses()
    worker.announce("a", 3, "g", fence=1)
    worker.loaded("a", 3)
    assert worker.overdue() == {}
    assert worker.offer(bounded)


def test_versions_are_too_old_by_the_announced_one():
    worker = Worker(slots=1, policies=1)
    assert not worker.too_old("a", 0, 0)
    worker.announce("a", 4, "d", fence=1)
    assert [worker.too_old("a", version, 2) for version in (1, 2, 4)] == [True, False, False]
    assert not worker.too_old("a", 0, None)


def test_a_rejected_line_is_neither_played_nor_kept_until_the_next_version_serves():
    worker = Worker(slots=2, policies=1)
    worker.announce("a", 3, "d", fence=1)
    worker.loaded("a", 3)
    bounded = replace(offer(), max_staleness=9)
    assert worker.offer(bounded)
    worker.announce("a", 4, "e", fence=1, line_start=4)
    assert worker.too_old("a", 3, 9)
    assert not worker.too_old("a", 3, None)
    assert not worker.offer(bounded)
    assert worker.refuses()
    assert worker.overdue() == {"a": "serves version 3, training went back and goes on from 4"}
    worker.loaded("a", 4)
    worker.announce("a", 5, "f", fence=2)  # a record from before there were lines says 0
    assert worker.line_start("a") == 4
    assert worker.offer(bounded)
    assert not worker.refuses()
