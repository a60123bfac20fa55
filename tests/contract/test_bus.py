"""What every bus does: the same rules on the twin in memory and on a real NATS server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest
from google.protobuf.wrappers_pb2 import Int64Value, StringValue
from tests.contract.conftest import MakeSide
from tests.contract.harness import Side, small_topology

from temper.runtime.bus import requests
from temper.runtime.bus.base import Bus, Delivery, kept_alive
from temper.runtime.envelope import Envelope
from temper.runtime.errors import Conflict, Exhausted, Rejected, Stale, TemperError, Unavailable
from temper.runtime.topology import cmd, evt, rpc

JOB = cmd("rollout", "job1")


def text(value: str) -> StringValue:
    return StringValue(value=value)


async def upper(message: StringValue, _: Envelope) -> StringValue:
    return text(message.value.upper())


async def ask(bus: Bus, value: str, subject: str = rpc("echo"), timeout_s: float = 10.0) -> str:
    return (await bus.request(subject, text(value), StringValue, timeout_s=timeout_s)).value


async def publish(bus: Bus, *ids: str) -> None:
    for each in ids:
        await bus.command(JOB, text(each), id=each)


# ---------------------------------------------------------------- requests


async def test_a_request_is_answered(side: Side):
    await side.bus.serve(rpc("echo"), StringValue, upper)
    assert await ask(side.bus, "hi") == "HI"


async def test_a_request_that_nobody_serves_fails_without_waiting(side: Side):
    with pytest.raises(Unavailable, match="nobody serves"):
        await ask(side.bus, "hi", timeout_s=1000.0)


async def test_a_request_to_a_service_that_stopped_fails_without_waiting(side: Side):
    served = await side.bus.serve(rpc("echo"), StringValue, upper)
    await served.stop()
    with pytest.raises(Unavailable, match="nobody serves"):
        await ask(side.bus, "hi", timeout_s=1000.0)


async def test_a_request_that_has_no_end_keeps_no_service_from_stopping(
    side: Side, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(requests, "DRAIN_S", 0.01)
    begun = asyncio.Event()

    async def endless(_: StringValue, __: Envelope) -> StringValue:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    served = await side.bus.serve(rpc("echo"), StringValue, endless)
    asking = asyncio.create_task(ask(side.bus, "hi", timeout_s=1000.0))
    await begun.wait()
    await served.stop()
    with pytest.raises(Unavailable, match="its host is stopping"):
        await asking


@pytest.mark.parametrize("kind", [Rejected, Unavailable, Stale, Conflict, Exhausted])
async def test_a_handlers_error_arrives_as_its_own_class_with_field_and_hint(
    side: Side, kind: type[TemperError]
):
    async def refuse(_: StringValue, __: Envelope) -> StringValue:
        raise kind("no", field="spec.steps", hint="try 1")

    await side.bus.serve(rpc("echo"), StringValue, refuse)
    with pytest.raises(kind) as caught:
        await ask(side.bus, "hi")
    assert type(caught.value) is kind
    assert (caught.value.message, caught.value.field, caught.value.hint) == ("no", "spec.steps", "try 1")


async def test_a_bug_in_a_handler_is_unavailable_and_the_service_goes_on(side: Side):
    async def fragile(message: StringValue, _: Envelope) -> StringValue:
        return text({"known": "fine"}[message.value])

    await side.bus.serve(rpc("echo"), StringValue, fragile)
    with pytest.raises(Unavailable, match="KeyError"):
        await ask(side.bus, "unknown")
    assert await ask(side.bus, "known") == "fine"


async def test_a_request_of_another_type_is_rejected(side: Side):
    await side.bus.serve(rpc("echo"), StringValue, upper)
    with pytest.raises(Rejected, match="Int64Value"):
        await side.bus.request(rpc("echo"), Int64Value(value=1), StringValue, timeout_s=10)


async def test_a_late_handler_is_cancelled_at_the_deadline_and_the_caller_told(side: Side):
    cancelled = asyncio.Event()

    async def hang(_: StringValue, __: Envelope) -> StringValue:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return text("never")

    await side.bus.serve(rpc("echo"), StringValue, hang)
    asked = asyncio.ensure_future(ask(side.bus, "hi", timeout_s=0.2))
    await side.until(cancelled)
    with pytest.raises(Unavailable):
        await asked


async def test_a_handler_sees_who_asks_until_when_and_under_which_fence(side: Side):
    seen: list[Envelope] = []

    async def look(message: StringValue, envelope: Envelope) -> StringValue:
        seen.append(envelope)
        return message

    await side.bus.serve(rpc("echo"), StringValue, look)
    before = side.clock.now()
    await side.bus.request(rpc("echo"), text("x"), StringValue, timeout_s=9, fence=41, id="e1-0")
    (envelope,) = seen
    assert (envelope.id, envelope.source, envelope.fence) == ("e1-0", "test/1", 41)
    assert envelope.type == "google.protobuf.StringValue"
    assert envelope.deadline is not None
    assert before + 8.9 < envelope.deadline < side.clock.now() + 9.1


async def test_requests_beyond_the_concurrency_are_shed(side: Side):
    go, busy = asyncio.Event(), asyncio.Event()

    async def wait(message: StringValue, _: Envelope) -> StringValue:
        busy.set()
        await go.wait()
        return message

    await side.bus.serve(rpc("echo"), StringValue, wait, concurrency=1)
    first = asyncio.ensure_future(ask(side.bus, "first"))
    await side.until(busy)
    with pytest.raises(Exhausted):
        await ask(side.bus, "second")
    go.set()
    assert await first == "first"


async def test_each_request_to_a_group_is_answered_by_one_member(side: Side):
    answered: list[str] = []

    def member(name: str):
        async def handle(message: StringValue, _: Envelope) -> StringValue:
            answered.append(name)
            return message

        return handle

    for name in ("a", "b"):
        client = await side.client(name)
        await client.serve(rpc("echo"), StringValue, member(name), queue="echo")
        assert await ask(client, "warm") == "warm"  # both are known to the server from here on
    answered.clear()
    await asyncio.gather(*(ask(side.bus, str(n)) for n in range(40)))
    assert len(answered) == 40
    assert set(answered) == {"a", "b"}


# ---------------------------------------------------------------- commands


async def test_a_command_is_handed_out_once_and_gone_after_its_ack(side: Side):
    await publish(side.bus, "c1")
    async with aclosing(side.bus.commands("rollout", concurrency=4)) as commands:
        delivery = await side.next(commands)
        assert delivery.message(StringValue).value == "c1"
        assert (delivery.delivered, delivery.envelope.id, delivery.subject) == (1, "c1", JOB)
        await delivery.ack()
        await side.nothing(commands)


async def test_a_second_command_with_the_same_id_is_dropped(side: Side):
    await publish(side.bus, "c1", "c1", "c2", "c1")
    async with aclosing(side.bus.commands("rollout", concurrency=4)) as commands:
        assert [(await side.next(commands)).envelope.id for _ in range(2)] == ["c1", "c2"]
        await side.nothing(commands)


async def test_at_most_concurrency_commands_are_unsettled(side: Side):
    await publish(side.bus, "c1", "c2", "c3")
    async with aclosing(side.bus.commands("rollout", concurrency=2, ack_wait_s=60)) as commands:
        first, _ = await side.next(commands), await side.next(commands)
        waiting = asyncio.ensure_future(anext(commands))
        await asyncio.wait({waiting}, timeout=0.1)
        assert not waiting.done()
        await first.ack()
        assert (await side.next(_once(waiting))).envelope.id == "c3"


async def test_many_commands_go_through_few_places_without_a_pause(side: Side):
    began = side.clock.monotonic()
    async with aclosing(side.bus.commands("rollout", concurrency=3, ack_wait_s=60)) as commands:
        for number in range(60):
            await publish(side.bus, f"c{number}")
        seen: list[str] = []
        for _ in range(60):
            delivery = await side.next(commands)
            seen.append(delivery.envelope.id)
            await delivery.ack()
    assert sorted(seen) == sorted(f"c{number}" for number in range(60))
    assert side.clock.monotonic() - began < 15


async def test_a_slow_command_does_not_hold_up_the_others(side: Side):
    async with aclosing(side.bus.commands("rollout", concurrency=2, ack_wait_s=600)) as commands:
        await publish(side.bus, "slow")
        slow = await side.next(commands)
        for each in ("c1", "c2", "c3", "c4", "c5"):
            await publish(side.bus, each)
            delivery = await side.next(commands)
            assert delivery.envelope.id == each
            await delivery.ack()
        await slow.ack()


async def test_silence_hands_a_command_to_another_worker(side: Side):
    await publish(side.bus, "c1")
    other = await side.client("other")
    async with aclosing(side.bus.commands("rollout", concurrency=1)) as lost:
        assert (await side.next(lost)).delivered == 1
        async with aclosing(other.commands("rollout", concurrency=1)) as commands:
            again = await side.next(commands)
            assert (again.envelope.id, again.delivered, again.envelope.attempt) == ("c1", 2, 2)
            await again.ack()


async def test_a_worker_that_dropped_a_command_gets_it_again_in_the_same_place(side: Side):
    await publish(side.bus, "c1")
    async with aclosing(side.bus.commands("rollout", concurrency=1)) as commands:
        assert (await side.next(commands)).delivered == 1
        again = await side.next(commands)
        assert (again.envelope.id, again.delivered) == ("c1", 2)
        await again.ack()


async def test_an_ack_after_the_command_was_taken_back_still_counts(side: Side):
    await publish(side.bus, "c1")
    async with aclosing(side.bus.commands("rollout", concurrency=2)) as commands:
        late = await side.next(commands)
        again = await side.next(commands)
        await late.ack()
        await again.nak()
        await side.nothing(commands)


async def test_signs_of_life_keep_a_command(side: Side):
    await publish(side.bus, "c1")
    other = await side.client("other")
    beats, enough = 0, asyncio.Event()
    async with aclosing(side.bus.commands("rollout", concurrency=1)) as mine:
        delivery = await side.next(mine)
        signal = delivery.in_progress

        async def count() -> None:
            nonlocal beats
            beats += 1
            if beats == 10:  # ten beats of 0.1 s are twice the ack wait
                enough.set()
            await signal()

        beating = _Beating(delivery, count)
        async with (
            kept_alive(beating, 0.1, side.clock),  # type: ignore[arg-type]  # the part of a delivery it uses
            aclosing(other.commands("rollout", concurrency=1)) as theirs,
        ):
            stolen = asyncio.ensure_future(anext(theirs))
            await side.until(enough)
            assert not stolen.done()
            await delivery.ack()
            stolen.cancel()
            await asyncio.wait({stolen})


async def test_a_refused_command_comes_again_after_its_delay(side: Side):
    await publish(side.bus, "c1")
    async with aclosing(side.bus.commands("rollout", concurrency=1, ack_wait_s=60)) as commands:
        refused = await side.next(commands)
        before = side.clock.monotonic()
        await refused.nak(0.3)
        again = await side.next(commands)
        assert again.delivered == 2
        assert side.clock.monotonic() - before >= 0.3
        await again.ack()


async def test_only_the_first_verdict_on_a_delivery_counts(side: Side):
    await publish(side.bus, "c1")
    async with aclosing(side.bus.commands("rollout", concurrency=2)) as commands:
        delivery = await side.next(commands)
        await delivery.ack()
        await delivery.nak()
        await delivery.term("no")
        await side.nothing(commands)
    assert await side.bus.dead_letters() == []


async def test_closing_the_iterator_hands_back_what_was_not_seen(side: Side):
    await publish(side.bus, "c1", "c2", "c3")
    other = await side.client("other")
    async with aclosing(other.commands("rollout", concurrency=3, ack_wait_s=600)) as commands:
        await (await side.next(commands)).ack()
    async with aclosing(side.bus.commands("rollout", concurrency=3)) as commands:
        found = {(await side.next(commands)).envelope.id for _ in range(2)}
        assert found == {"c2", "c3"}


async def test_closing_the_bus_ends_the_iteration(side: Side):
    other = await side.client("other")
    commands = other.commands("rollout", concurrency=1)
    waiting = asyncio.ensure_future(anext(commands, None))
    await asyncio.wait({waiting}, timeout=0.1)
    await other.close()
    assert await asyncio.wait_for(waiting, 30) is None


async def test_a_full_queue_refuses_the_publisher_until_work_is_done(make_side: MakeSide):
    side = await make_side(small_topology(max_messages=2))
    await publish(side.bus, "c1", "c2")
    with pytest.raises(Exhausted):
        await publish(side.bus, "c3")
    async with aclosing(side.bus.commands("rollout", concurrency=1)) as commands:
        await (await side.next(commands)).ack()
    await publish(side.bus, "c3")


# ---------------------------------------------------------------- dead letters


async def test_a_terminated_command_is_a_dead_letter_with_its_reason(side: Side):
    await publish(side.bus, "c1")
    async with aclosing(side.bus.commands("rollout", concurrency=1)) as commands:
        await (await side.next(commands)).term("the environment\nis unknown")
        await side.nothing(commands)
    (letter,) = await side.bus.dead_letters()
    assert (letter.subject, letter.reason) == (JOB, "the environment is unknown")
    assert (letter.envelope.id, letter.message(StringValue).value) == ("c1", "c1")


async def test_a_command_handed_out_too_often_is_poison_and_can_be_buried(side: Side):
    await publish(side.bus, "c1")
    async with aclosing(side.bus.commands("rollout", concurrency=1)) as commands:
        for _ in range(2):  # max_deliver of this topology
            await (await side.next(commands)).nak()
        async with aclosing(side.bus.poisoned("rollout")) as poisoned, _driven(commands):
            poison = await side.next(poisoned)
            assert (poison.subject, poison.envelope.id, poison.delivered) == (JOB, "c1", 2)
            assert poison.message(StringValue).value == "c1"
            await poison.bury("failed 2 times")
    (letter,) = await side.bus.dead_letters()
    assert (letter.envelope.id, letter.reason) == ("c1", "failed 2 times")


async def test_poison_waits_for_a_listener_and_for_one_that_deals_with_it(side: Side):
    await publish(side.bus, "c1")
    async with aclosing(side.bus.commands("rollout", concurrency=1)) as commands:
        for _ in range(2):
            await (await side.next(commands)).nak()
        await side.nothing(commands)
    async with aclosing(side.bus.poisoned("rollout")) as poisoned:
        assert (await side.next(poisoned)).envelope.id == "c1"
    other = await side.client("other")
    async with aclosing(other.poisoned("rollout")) as poisoned:
        poison = await side.next(poisoned)
        assert poison.envelope.id == "c1"
        await poison.bury("the first listener died")
    assert len(await side.bus.dead_letters()) == 1


async def test_a_dead_letter_can_be_retried_with_its_id(side: Side):
    await publish(side.bus, "c1")
    async with aclosing(side.bus.commands("rollout", concurrency=1)) as commands:
        await (await side.next(commands)).term("bad day")
        (letter,) = await side.bus.dead_letters()
        await side.bus.retry_dead(letter.seq)
        again = await side.next(commands)
        assert (again.envelope.id, again.delivered) == ("c1", 1)
        assert await side.bus.dead_letters() == []
        await again.term("worse day")
    (letter,) = await side.bus.dead_letters()
    assert letter.reason == "worse day"


async def test_a_dead_letter_can_be_dropped_once(side: Side):
    envelope = Envelope(id="x", type="google.protobuf.StringValue", source="test/1")
    seq = await side.bus.dead(JOB, envelope, b"", "because")
    await side.bus.drop_dead(seq)
    assert await side.bus.dead_letters() == []
    with pytest.raises(Rejected, match="no dead letter"):
        await side.bus.drop_dead(seq)
    with pytest.raises(Rejected, match="no dead letter"):
        await side.bus.retry_dead(seq)


async def test_dead_letters_are_read_in_pages(side: Side):
    for number in range(5):
        envelope = Envelope(id=f"x{number}", type="google.protobuf.StringValue", source="test/1")
        await side.bus.dead(JOB, envelope, b"", "because")
    first = await side.bus.dead_letters(limit=2)
    rest = await side.bus.dead_letters(after=first[-1].seq)
    assert [letter.envelope.id for letter in first + rest] == ["x0", "x1", "x2", "x3", "x4"]


# ---------------------------------------------------------------- events


async def test_events_begin_with_the_next_one(side: Side):
    await side.bus.event(evt("scheduler", "job1"), text("before"))
    async with aclosing(side.bus.events(evt("scheduler") + ".>")) as events:
        waiting = asyncio.ensure_future(anext(events))
        await asyncio.wait({waiting}, timeout=0.3)
        await side.bus.event(evt("scheduler", "job1"), text("after"))
        event = await side.next(_once(waiting))
        assert event.message(StringValue).value == "after"


async def test_events_are_retained_filtered_and_resumable(side: Side):
    for number in range(4):
        await side.bus.event(evt("scheduler", f"job{number % 2}"), text(str(number)), id=f"e{number}")
    async with aclosing(side.bus.events(evt("scheduler", "job1"), after=0)) as events:
        first = await side.next(events)
        assert (first.message(StringValue).value, first.subject) == ("1", evt("scheduler", "job1"))
    async with aclosing(side.bus.events(evt("scheduler", "job1"), after=first.seq)) as events:
        assert (await side.next(events)).message(StringValue).value == "3"
        await side.nothing(events)


async def test_a_long_trickle_of_events_is_seen_without_a_pause(side: Side):
    async with aclosing(side.bus.events(evt("scheduler") + ".>", after=0)) as events:
        began = side.clock.monotonic()
        for number in range(600):  # more than twice what a reader asks for at a time
            await side.bus.event(evt("scheduler", "job1"), text(str(number)))
            assert (await side.next(events)).message(StringValue).value == str(number)
        assert side.clock.monotonic() - began < 15  # a request for more that nobody made expires after 20 s


async def test_an_event_with_a_known_id_is_not_repeated(side: Side):
    first = await side.bus.event(evt("scheduler", "job1"), text("a"), id="e1")
    assert await side.bus.event(evt("scheduler", "job1"), text("a"), id="e1") == first


# ---------------------------------------------------------------- parts


class _Beating:
    def __init__(self, delivery: Delivery, in_progress) -> None:
        self._delivery = delivery
        self.in_progress = in_progress


async def _once(task: asyncio.Future) -> AsyncGenerator:
    yield await task


class _driven:  # noqa: N801  # reads as a verb where it is used
    """Keeps asking for the next command: a queue finds its poison when it is asked."""

    def __init__(self, commands: AsyncGenerator[Delivery, None]) -> None:
        self._commands = commands

    async def __aenter__(self) -> None:
        self._task = asyncio.ensure_future(anext(self._commands))

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})
