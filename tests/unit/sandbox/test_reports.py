"""What went wrong elsewhere and must not happen to the sessions of a host; each test is named by the report."""

import pytest

from temper.runtime.errors import Stale
from temper.sandbox.phases import End, Verdict
from temper.sandbox.state import Sessions


def test_verifiers_2414_a_sandbox_that_is_made_after_its_caller_gave_up_is_destroyed_and_not_left():
    sessions: Sessions[str] = Sessions(capacity=2)
    begun = sessions.begin("episode", now=0.0, lease_s=30.0)
    assert begun.verdict is Verdict.CREATE
    sessions.end("episode", End.RELEASED)  # the caller's patience is over while the backend still works
    assert sessions.created("episode", begun.epoch) is False  # whoever made it has to take it down
    with pytest.raises(Stale):  # and a call of the same episode that comes late makes no second one
        sessions.begin("episode", now=1.0, lease_s=30.0)
    assert len(sessions) == 0


def test_verifiers_2414_what_nobody_renews_is_taken_back():
    sessions: Sessions[str] = Sessions(capacity=2)
    begun = sessions.begin("episode", now=0.0, lease_s=30.0)
    assert sessions.created("episode", begun.epoch)
    assert sessions.overdue(29.0) == []
    assert sessions.overdue(31.0) == ["episode"]
