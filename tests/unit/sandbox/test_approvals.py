"""The machine of approvals by properties, and the gatekeeper over a bus in memory."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from temper.api.sandbox.v1 import approval_pb2
from temper.api.sandbox.v1.approval_pb2 import Approval
from temper.runtime.bus.memory import MemoryBus
from temper.runtime.clock import FakeClock
from temper.runtime.errors import Conflict, Exhausted
from temper.sandbox import approvals
from temper.sandbox.gatekeeper import BUCKET, Gatekeeper

SUBJECT = {"name": "shell", "arguments": {"command": "rm -rf /work"}, "command_id": "s#1"}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
SUBJECTS = st.dictionaries(st.text(min_size=1, max_size=4), JSON, max_size=3)


def asked(subject: Mapping[str, Any] = SUBJECT, *, kind: str = "tool", session: str = "s") -> Approval:
    return approvals.question(kind, subject, session=session, job="j", env="e@1", now=100.0, expires_s=60.0)


@given(SUBJECTS, SUBJECTS, st.sampled_from(["s", "t"]), st.sampled_from(["tool", "exec"]))
def test_a_question_is_bound_to_exactly_what_is_asked(
    one: dict[str, Any], two: dict[str, Any], session: str, kind: str
) -> None:
    first, second = asked(one), asked(two, session=session, kind=kind)
    alike = (approvals.canonical(one), "s", "tool") == (approvals.canonical(two), session, kind)
    if "kind" not in one and "kind" not in two:
        assert approvals.same(first, second) == alike
        assert (first.approval_id == second.approval_id) == alike


def test_the_order_of_arguments_changes_nothing() -> None:
    assert asked({"a": 1, "b": 2}).digest == asked({"b": 2, "a": 1}).digest


class Life(RuleBasedStateMachine):
    """Any order of answers, silences and looks at the clock."""

    @initialize()
    def begin(self) -> None:
        self.record = asked()
        self.now = 100.0
        self.ended: Approval | None = None

    @rule(seconds=st.floats(0, 50))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(grant=st.booleans())
    def somebody_answers(self, grant: bool) -> None:
        late = self.now >= 160.0
        try:
            self._end(approvals.answer(self.record, grant=grant, by="ann", reason="", now=self.now))
        except Conflict:
            assert self.ended is not None or late
        else:
            assert not late
            assert (self.record.state == approvals.GRANTED) == grant

    @rule()
    def somebody_looks_whether_it_has_expired(self) -> None:
        try:
            self._end(approvals.expire(self.record, self.now))
        except Conflict:
            assert self.ended is not None or self.now < 160.0
        else:
            assert self.record.state == approvals.EXPIRED

    def _end(self, record: Approval) -> None:
        assert self.ended is None  # resolved once
        self.record = self.ended = record

    @invariant()
    def what_has_ended_stays_as_it_ended(self) -> None:
        if self.ended is not None:
            assert self.record == self.ended
            assert self.record.HasField("resolved_at")
        assert self.record.digest == asked().digest


TestLife = Life.TestCase


@pytest.mark.parametrize(
    ("patterns", "name", "needed"),
    [((), "shell", False), (("shell",), "shell", True), (("sh*",), "shell", True), (("*",), "x", True)],
)
def test_which_tools_need_a_word(patterns: tuple[str, ...], name: str, needed: bool) -> None:
    assert approvals.needed(patterns, name) is needed


class Desk:
    """Two services over one broker, and a person."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.bus = MemoryBus(self.clock)

    def gatekeeper(self, *, hold_s: float = 5.0) -> Gatekeeper:
        return Gatekeeper(self.bus.client("sandbox"), self.clock, expires_s=60.0, hold_s=hold_s)

    async def stored(self) -> list[Approval]:
        bucket = await self.bus.client("test").kv(BUCKET)
        entries = [await bucket.get(key) for key in await bucket.keys()]
        return [Approval.FromString(entry.value) for entry in entries if entry is not None]

    async def answer(self, grant: bool) -> None:
        bucket = await self.bus.client("person").kv(BUCKET)
        (key,) = await bucket.keys()
        entry = await bucket.get(key)
        assert entry is not None
        record = approvals.answer(
            Approval.FromString(entry.value), grant=grant, by="ann", reason="ok", now=self.clock.now()
        )
        await bucket.update(key, record.SerializeToString(), entry.revision)


async def asking(
    desk: Desk, gate: Gatekeeper, subject: Mapping[str, Any] = SUBJECT
) -> "asyncio.Task[Approval]":
    task = asyncio.create_task(gate.ask("tool", subject, session="s", job="j"))
    await desk.clock.settle()
    return task


@pytest.mark.parametrize("grant", [True, False])
async def test_an_answer_ends_the_wait(grant: bool) -> None:
    desk = Desk()
    task = await asking(desk, desk.gatekeeper())
    assert [each.state for each in await desk.stored()] == [approvals.PENDING]
    await desk.answer(grant)
    record = await task
    assert (record.state == approvals.GRANTED) is grant
    assert record.resolved_by == "ann"


async def test_without_an_answer_the_caller_is_told_to_ask_again_and_the_question_stays() -> None:
    desk = Desk()
    task = await asking(desk, desk.gatekeeper())
    await desk.clock.advance(5.1)
    with pytest.raises(Exhausted, match="waits for approval"):
        await task
    await desk.answer(True)
    again = await asking(desk, desk.gatekeeper())
    assert (await again).state == approvals.GRANTED
    assert len(await desk.stored()) == 1


async def test_silence_is_a_no_and_no_later_answer_counts() -> None:
    desk = Desk()
    gate = desk.gatekeeper(hold_s=1000.0)
    task = await asking(desk, gate)
    await desk.clock.advance(61)
    assert (await task).state == approvals.EXPIRED
    with pytest.raises(Conflict):
        await desk.answer(True)
    assert (await gate.ask("tool", SUBJECT, session="s")).state == approvals.EXPIRED


async def test_the_death_of_the_asker_loses_nothing() -> None:
    desk = Desk()
    task = await asking(desk, desk.gatekeeper())
    task.cancel()
    await asyncio.wait([task])
    await desk.answer(True)
    assert (await desk.gatekeeper().ask("tool", SUBJECT, session="s")).state == approvals.GRANTED


async def test_one_yes_says_nothing_about_anything_else() -> None:
    desk = Desk()
    task = await asking(desk, desk.gatekeeper())
    await desk.answer(True)
    await task
    for subject in (
        {**SUBJECT, "arguments": {"command": "rm -rf /work "}},
        {**SUBJECT, "command_id": "s#2"},
    ):
        other = await asking(desk, desk.gatekeeper(), subject)
        await desk.clock.advance(5.1)
        with pytest.raises(Exhausted):
            await other
    waiting = asyncio.create_task(desk.gatekeeper().ask("tool", SUBJECT, session="another"))
    await desk.clock.settle()
    await desk.clock.advance(5.1)
    with pytest.raises(Exhausted):
        await waiting


async def test_a_record_that_is_about_something_else_is_not_taken_for_an_answer() -> None:
    desk = Desk()
    forged = asked()
    forged.digest, forged.state = "0" * 64, approval_pb2.APPROVAL_STATE_GRANTED
    bucket = await desk.bus.client("x").kv(BUCKET)
    await bucket.put(forged.approval_id, forged.SerializeToString())
    with pytest.raises(Conflict, match="something else"):
        await desk.gatekeeper().ask("tool", SUBJECT, session="s")


async def test_two_askers_of_the_same_share_one_question() -> None:
    desk = Desk()
    one, two = await asking(desk, desk.gatekeeper()), await asking(desk, desk.gatekeeper())
    await desk.answer(True)
    assert (await one) == (await two)


def test_padding_hides_nothing_from_the_person() -> None:
    padded = {"tool": "shell", "arguments": {"command": "ls" + " " * 60_000 + "; rm -rf ~"}}
    record = approvals.question("tool", padded, session="s", job="", env="", now=0.0, expires_s=1.0)
    assert "rm -rf ~" in record.subject_json
    assert "characters are not shown" in record.subject_json
    assert len(record.subject_json) < 17_000
