"""The session machine: examples of each rule, then every order of events that hypothesis can think of."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from temper.runtime.errors import Conflict, Exhausted, Rejected, Stale
from temper.sandbox.phases import Asker, End, Phase, Verdict
from temper.sandbox.state import MOST_LEASE_S, Sessions


def live(sessions: Sessions[str], name: str = "a", *, now: float = 0.0, lease_s: float = 10.0) -> int:
    decision = sessions.begin(name, now=now, lease_s=lease_s)
    assert sessions.created(name, decision.epoch)
    return decision.epoch


def test_the_first_asker_creates_the_second_joins_the_third_uses() -> None:
    sessions: Sessions[str] = Sessions(capacity=1)
    first = sessions.begin("a", now=0, lease_s=1)
    assert first.verdict is Verdict.CREATE
    assert sessions.begin("a", now=0, lease_s=1).verdict is Verdict.JOIN
    assert sessions.created("a", first.epoch)
    assert sessions.begin("a", now=0, lease_s=1).verdict is Verdict.USE


def test_a_full_host_refuses_and_a_failed_creation_frees_its_place() -> None:
    sessions: Sessions[str] = Sessions(capacity=1)
    decision = sessions.begin("a", now=0, lease_s=1)
    with pytest.raises(Exhausted):
        sessions.begin("b", now=0, lease_s=1)
    sessions.failed("a", decision.epoch)
    assert sessions.begin("b", now=0, lease_s=1).verdict is Verdict.CREATE


def test_a_sandbox_that_surfaces_after_its_session_ended_is_unwanted() -> None:
    sessions: Sessions[str] = Sessions(capacity=1)
    decision = sessions.begin("a", now=0, lease_s=1)
    sessions.end("a", End.RELEASED)
    assert not sessions.created("a", decision.epoch)


def test_a_session_that_nobody_waits_for_any_more_is_unwanted() -> None:
    sessions: Sessions[str] = Sessions(capacity=2)
    epoch = sessions.begin("a", now=0, lease_s=1, asker=Asker("r1", until=5)).epoch
    assert not sessions.unwanted("a", epoch, now=5)
    assert sessions.unwanted("a", epoch, now=6)
    assert not sessions.unwanted("a", epoch + 1, now=6)
    sessions.begin("a", now=6, lease_s=1, asker=Asker("r2", until=9))
    assert not sessions.unwanted("a", epoch, now=8)
    assert sessions.created("a", epoch)
    assert not sessions.unwanted("a", epoch, now=99)
    forever = sessions.begin("b", now=0, lease_s=1).epoch
    assert not sessions.unwanted("b", forever, now=1e9)


def test_only_the_last_asker_who_withdraws_gives_a_session_back() -> None:
    sessions: Sessions[str] = Sessions(capacity=1)
    epoch = sessions.begin("a", now=0, lease_s=1, asker=Asker("r1")).epoch
    sessions.begin("a", now=0, lease_s=1, asker=Asker("r2"))
    assert not sessions.withdraw("a", "r1")
    assert not sessions.withdraw("a", "other")
    assert sessions.created("a", epoch)
    assert sessions.withdraw("a", "r2")


def test_a_session_that_another_was_given_is_not_one_askers_to_take_back() -> None:
    sessions: Sessions[str] = Sessions(capacity=1)
    epoch = sessions.begin("a", now=0, lease_s=1, asker=Asker("r1")).epoch
    sessions.created("a", epoch)
    assert sessions.begin("a", now=0, lease_s=1, asker=Asker("r2")).verdict is Verdict.USE
    assert not sessions.withdraw("a", "r1")
    assert not sessions.withdraw("a", "r2")


def test_a_request_that_was_withdrawn_before_it_came_makes_nothing() -> None:
    sessions: Sessions[str] = Sessions(capacity=1, tombstones=2)
    assert not sessions.withdraw("a", "r1")
    with pytest.raises(Stale, match="withdrawn"):
        sessions.begin("a", now=0, lease_s=1, asker=Asker("r1"))
    for index in range(2, 4):
        sessions.withdraw("a", f"r{index}")
    assert sessions.begin("a", now=0, lease_s=1, asker=Asker("r1")).verdict is Verdict.CREATE


def test_who_comes_late_is_told_how_a_session_ended_and_what_to_do() -> None:
    sessions: Sessions[str] = Sessions(capacity=1)
    sessions.begin("a", now=0, lease_s=1)
    with pytest.raises(Stale, match=r"being made.*Acquire"):
        sessions.start("a", "c", now=0)
    sessions.end("a", End.ABANDONED)
    for ask in (
        lambda: sessions.begin("a", now=0, lease_s=1),
        lambda: sessions.start("a", "c", now=0),
        lambda: sessions.require("a"),
    ):
        with pytest.raises(Stale, match=r"abandoned: .*given up.*start another session"):
            ask()


def test_a_command_for_a_session_of_before_a_restart_is_told_so() -> None:
    restarted: Sessions[str] = Sessions(capacity=1)
    with pytest.raises(Stale, match=r"restarted.*start another session.*lost"):
        restarted.start("a", "c1", now=0)


def test_a_command_runs_once_and_its_repeat_is_answered_from_the_log() -> None:
    sessions: Sessions[str] = Sessions(capacity=1)
    epoch = live(sessions)
    assert sessions.start("a", "c1", now=0).verdict is Verdict.RUN
    with pytest.raises(Conflict):
        sessions.start("a", "c1", now=0)
    sessions.complete("a", epoch, "c1", "result", now=0)
    repeat = sessions.start("a", "c1", now=0)
    assert (repeat.verdict, repeat.result) == (Verdict.CACHED, "result")


def test_a_command_that_the_host_failed_may_run_again() -> None:
    sessions: Sessions[str] = Sessions(capacity=1)
    epoch = live(sessions)
    sessions.start("a", "c1", now=0)
    sessions.complete("a", epoch, "c1", None, now=0)
    assert sessions.start("a", "c1", now=0).verdict is Verdict.RUN


def test_an_ended_session_is_stale_to_everyone() -> None:
    sessions: Sessions[str] = Sessions(capacity=1)
    epoch = live(sessions)
    sessions.end("a", End.REAPED)
    for ask in (
        lambda: sessions.begin("a", now=0, lease_s=1),
        lambda: sessions.start("a", "c", now=0),
        lambda: sessions.renew("a", epoch, now=0, lease_s=1),
    ):
        with pytest.raises(Stale):
            ask()


def test_an_old_epoch_cannot_renew() -> None:
    sessions: Sessions[str] = Sessions(capacity=1)
    epoch = live(sessions)
    with pytest.raises(Stale, match="epoch"):
        sessions.renew("a", epoch - 1, now=0, lease_s=1)


def test_a_finished_session_answers_a_repeated_finish() -> None:
    sessions: Sessions[str] = Sessions(capacity=1)
    live(sessions)
    sessions.end("a", End.FINISHED, "verdict")
    assert sessions.farewell("a") == "verdict"
    assert sessions.farewell("b") is None


def test_use_extends_the_lease_and_a_running_command_is_never_overdue() -> None:
    sessions: Sessions[str] = Sessions(capacity=1)
    epoch = live(sessions, lease_s=10)
    sessions.start("a", "c", now=9)
    assert sessions.overdue(1000) == []
    sessions.complete("a", epoch, "c", "r", now=1000)
    assert sessions.overdue(1009) == []
    assert sessions.overdue(1010) == ["a"]


def test_a_draining_host_takes_no_new_session_and_serves_the_old() -> None:
    sessions: Sessions[str] = Sessions(capacity=2)
    live(sessions)
    sessions.drain()
    assert sessions.begin("a", now=0, lease_s=1).verdict is Verdict.USE
    with pytest.raises(Exhausted, match="draining"):
        sessions.begin("b", now=0, lease_s=1)


def test_a_lease_must_be_positive() -> None:
    sessions: Sessions[str] = Sessions(capacity=1)
    for bad in (0.0, -1.0, float("nan")):
        with pytest.raises(Rejected, match="lease_s"):
            sessions.begin("a", now=0, lease_s=bad)


def test_a_lease_ends() -> None:
    sessions: Sessions[str] = Sessions(capacity=1)
    for endless in (float("inf"), 1e12):
        with pytest.raises(Rejected, match="lease_s"):
            sessions.begin("a", now=0, lease_s=endless)
    epoch = sessions.begin("a", now=0, lease_s=MOST_LEASE_S).epoch
    sessions.created("a", epoch)
    with pytest.raises(Rejected, match="lease_s"):
        sessions.renew("a", epoch, now=0, lease_s=float("inf"))


def test_results_and_tombstones_are_bounded() -> None:
    sessions: Sessions[str] = Sessions(capacity=1, tombstones=3, kept_results=2)
    epoch = live(sessions)
    for index in range(5):
        sessions.start("a", f"c{index}", now=0)
        sessions.complete("a", epoch, f"c{index}", "r", now=0)
    session = sessions.find("a")
    assert session is not None
    assert list(session.results) == ["c3", "c4"]
    with pytest.raises(Stale, match="no longer kept"):
        sessions.start("a", "c0", now=0)
    sessions.end("a", End.RELEASED)
    for index in range(5):
        live(sessions, f"s{index}")
        sessions.end(f"s{index}", End.RELEASED)
    assert sessions.begin("a", now=0, lease_s=1).verdict is Verdict.CREATE


def test_ids_are_bounded_too() -> None:
    sessions: Sessions[str] = Sessions(capacity=1, kept_results=1, kept_ids=2)
    epoch = live(sessions)
    for index in range(4):
        sessions.start("a", f"c{index}", now=0)
        sessions.complete("a", epoch, f"c{index}", "r", now=0)
    session = sessions.find("a")
    assert session is not None
    assert list(session.begun) == ["c2", "c3"]


def test_rewinding_forgets_exactly_the_later_commands() -> None:
    sessions: Sessions[str] = Sessions(capacity=1)
    epoch = live(sessions)
    for index in range(4):
        sessions.start("a", f"c{index}", now=0)
        with pytest.raises(Conflict):
            sessions.rewind("a", 0)
        sessions.complete("a", epoch, f"c{index}", f"r{index}", now=0)
    assert sessions.rewind("a", 2) == 2
    assert sessions.start("a", "c1", now=0).result == "r1"
    assert sessions.start("a", "c2", now=0).verdict is Verdict.RUN
    assert sessions.commands("a") == 5
    with pytest.raises(Stale):
        sessions.rewind("b", 0)


NAMES = st.sampled_from(["a", "b", "c", "d"])
COMMANDS = st.sampled_from(["c1", "c2", "c3"])


class Machine(RuleBasedStateMachine):
    """Against a model: what was begun, what runs, what has been answered."""

    @initialize(capacity=st.integers(1, 3))
    def setup(self, capacity: int) -> None:
        self.capacity = capacity
        self.sessions: Sessions[str] = Sessions(capacity=capacity)
        self.now = 0.0
        self.epochs: dict[str, int] = {}
        self.live: set[str] = set()
        self.ended: set[str] = set()
        self.running: set[tuple[str, str]] = set()
        self.answered: dict[tuple[str, str], str] = {}
        self.executions: dict[tuple[str, str], int] = {}
        self.seen: set[int] = set()

    @rule(name=NAMES, lease=st.floats(0.5, 20))
    def begin(self, name: str, lease: float) -> None:
        try:
            decision = self.sessions.begin(name, now=self.now, lease_s=lease)
        except Stale:
            assert name in self.ended
        except Exhausted:
            assert len(self.epochs) == self.capacity
            assert name not in self.epochs
        else:
            assert name not in self.ended
            assert (decision.verdict is Verdict.CREATE) == (name not in self.epochs)
            assert (decision.verdict is Verdict.USE) == (name in self.live)
            if decision.verdict is Verdict.CREATE:
                assert decision.epoch not in self.seen
                self.seen.add(decision.epoch)
                self.epochs[name] = decision.epoch

    @rule(name=NAMES, works=st.booleans())
    def create(self, name: str, works: bool) -> None:
        if name in self.live or name not in self.epochs:
            return
        if works:
            assert self.sessions.created(name, self.epochs[name])
            self.live.add(name)
        else:
            self.sessions.failed(name, self.epochs.pop(name))

    @rule(name=NAMES)
    def give_up(self, name: str) -> None:
        """Nobody of these named themselves, so no stranger takes a session from them."""
        assert not self.sessions.withdraw(name, "stranger")
        assert not any(
            self.sessions.unwanted(each, epoch, now=self.now + 1e9) for each, epoch in self.epochs.items()
        )

    @rule(name=NAMES, command=COMMANDS)
    def start(self, name: str, command: str) -> None:
        key = (name, command)
        try:
            decision = self.sessions.start(name, command, now=self.now)
        except Stale:
            assert name not in self.live
        except Conflict:
            assert key in self.running
        else:
            assert name in self.live
            assert key not in self.running
            if decision.verdict is Verdict.CACHED:
                assert decision.result == self.answered[key]
            else:
                assert key not in self.answered
                self.running.add(key)
                self.executions[key] = self.executions.get(key, 0) + 1

    @precondition(lambda self: self.running)
    @rule(data=st.data(), works=st.booleans())
    def complete(self, data: Any, works: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.running)))
        result = f"result of {key}" if works else None
        self.sessions.complete(key[0], self.epochs[key[0]], key[1], result, now=self.now)
        self.running.discard(key)
        if result is not None:
            self.answered[key] = result

    @rule(name=NAMES, how=st.sampled_from(list(End)))
    def end(self, name: str, how: End) -> None:
        ended = self.sessions.end(name, how)
        assert (ended is not None) == (name in self.epochs)
        if ended is not None:
            self._forget(name)

    @rule(seconds=st.floats(0, 30))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def reap(self) -> None:
        for name in self.sessions.overdue(self.now):
            assert name in self.live
            assert not any(key[0] == name for key in self.running)
            self.sessions.end(name, End.REAPED)
            self._forget(name)

    def _forget(self, name: str) -> None:
        del self.epochs[name]
        self.live.discard(name)
        self.ended.add(name)
        self.running = {key for key in self.running if key[0] != name}

    @invariant()
    def never_more_than_the_capacity(self) -> None:
        assert len(self.sessions) == len(self.epochs) <= self.capacity

    @invariant()
    def phases_agree(self) -> None:
        assert {each.name for each in self.sessions if each.phase is Phase.LIVE} == self.live

    @invariant()
    def an_answered_command_never_runs_again(self) -> None:
        assert not set(self.answered) & self.running


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
