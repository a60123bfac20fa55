from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from temper.runtime.actor import Actor, ActorRef, handles, spawn
from temper.runtime.clock import FakeClock
from temper.runtime.errors import Conflict, Exhausted, Rejected, Unavailable
from temper.runtime.supervisor import GaveUp, Restarts, Supervisor


@dataclass(frozen=True, slots=True)
class Add:
    amount: int


@dataclass(frozen=True, slots=True)
class Read:
    pass


@dataclass(frozen=True, slots=True)
class Refuse:
    pass


@dataclass(frozen=True, slots=True)
class Break:
    pass


@dataclass(frozen=True, slots=True)
class Wait:
    until: asyncio.Event


class Counter(Actor):
    made = 0

    def __init__(self) -> None:
        type(self).made += 1
        self.total = 0
        self.history: list[str] = []

    @handles(Add)
    async def add(self, message: Add) -> int:
        self.total += message.amount
        return self.total

    @handles(Read)
    async def read(self, _: Read) -> int:
        return self.total

    @handles(Refuse)
    async def refuse(self, _: Refuse) -> None:
        raise Conflict("not now", field="total")

    @handles(Break)
    async def break_(self, _: Break) -> None:
        raise ZeroDivisionError("a bug")

    @handles(Wait)
    async def wait(self, message: Wait) -> str:
        await message.until.wait()
        return "waited"


@pytest.fixture
def supervisor(fake_clock: FakeClock) -> Supervisor:
    return Supervisor(clock=fake_clock)


@pytest.fixture
async def counter(supervisor: Supervisor, fake_clock: FakeClock):
    yield spawn(supervisor, "counter", Counter, capacity=3, clock=fake_clock)
    await supervisor.stop()


async def test_an_ask_is_answered_by_the_handler_of_its_type(counter: ActorRef):
    assert await counter.ask(Add(2), timeout_s=1) == 2
    assert await counter.ask(Add(3), timeout_s=1) == 5


async def test_a_tell_is_handled_before_a_later_ask(counter: ActorRef):
    counter.tell(Add(1))
    counter.tell(Add(1))
    assert await counter.ask(Read(), timeout_s=1) == 2


async def test_one_message_is_handled_at_a_time(counter: ActorRef, fake_clock: FakeClock):
    gate = asyncio.Event()
    first = asyncio.ensure_future(counter.ask(Wait(gate), timeout_s=10))
    second = asyncio.ensure_future(counter.ask(Read(), timeout_s=10))
    await fake_clock.settle()
    assert not second.done()
    gate.set()
    assert await first == "waited"
    assert await second == 0


async def test_a_full_mailbox_refuses(counter: ActorRef, fake_clock: FakeClock):
    gate = asyncio.Event()
    counter.tell(Wait(gate))
    await fake_clock.settle()
    for _ in range(3):
        counter.tell(Add(1))
    with pytest.raises(Exhausted, match="mailbox of counter is full"):
        counter.tell(Add(1))
    with pytest.raises(Exhausted):
        await counter.ask(Add(1), timeout_s=1)
    gate.set()
    await fake_clock.settle()
    assert await counter.ask(Read(), timeout_s=1) == 3


async def test_an_ask_has_a_deadline(counter: ActorRef, fake_clock: FakeClock):
    asked = asyncio.ensure_future(counter.ask(Wait(asyncio.Event()), timeout_s=2))
    await fake_clock.advance(2.1)
    with pytest.raises(Unavailable, match="within 2 s"):
        await asked


async def test_a_refusal_reaches_the_asker_and_the_actor_goes_on(counter: ActorRef):
    await counter.ask(Add(1), timeout_s=1)
    with pytest.raises(Conflict, match="total: not now"):
        await counter.ask(Refuse(), timeout_s=1)
    counter.tell(Refuse())
    assert await counter.ask(Read(), timeout_s=1) == 1


async def test_a_message_without_a_handler_is_rejected(counter: ActorRef):
    with pytest.raises(Rejected, match="does not handle str"):
        await counter.ask("hello", timeout_s=1)


async def test_a_bug_ends_the_actor_tells_the_asker_and_a_fresh_actor_takes_over(
    counter: ActorRef, fake_clock: FakeClock
):
    await counter.ask(Add(5), timeout_s=1)
    made = Counter.made
    with pytest.raises(Unavailable, match="failed while it handled"):
        await counter.ask(Break(), timeout_s=1)
    waiting = asyncio.ensure_future(counter.ask(Read(), timeout_s=10))
    await fake_clock.advance(1)
    assert await waiting == 0
    assert Counter.made == made + 1


async def test_messages_that_waited_survive_a_restart(counter: ActorRef, fake_clock: FakeClock):
    counter.tell(Break())
    counter.tell(Add(1))
    asked = asyncio.ensure_future(counter.ask(Read(), timeout_s=10))
    await fake_clock.advance(1)
    assert await asked == 1


async def test_an_actor_that_fails_too_often_ends_the_supervisor(fake_clock: FakeClock):
    supervisor = Supervisor(clock=fake_clock, restarts=Restarts(most=1))
    ref = spawn(supervisor, "counter", Counter, clock=fake_clock)
    for _ in range(2):
        ref.tell(Break())
    await fake_clock.advance(10)
    with pytest.raises(GaveUp, match="a bug"):
        await supervisor.wait()
    await supervisor.stop()


async def test_a_life_is_setup_running_failure_teardown(fake_clock: FakeClock):
    history: list[str] = []

    class Witness(Actor):
        async def on_start(self) -> None:
            history.append("start")

        async def on_stop(self) -> None:
            history.append("stop")

        async def on_failure(self, error: BaseException) -> None:
            history.append(f"failure: {error}")

        @handles(Break)
        async def break_(self, _: Break) -> None:
            history.append("handle")
            raise ZeroDivisionError("a bug")

    ref = ActorRef("witness", clock=fake_clock)
    ref.tell(Break())
    with pytest.raises(ZeroDivisionError):
        await Witness().run(ref)
    assert history == ["start", "handle", "failure: a bug", "stop"]


async def test_a_stopped_actor_lets_its_handler_clean_up_before_on_stop(fake_clock: FakeClock):
    history: list[str] = []

    class Careful(Actor):
        async def on_stop(self) -> None:
            history.append("stop")

        @handles(Wait)
        async def wait(self, message: Wait) -> None:
            try:
                await message.until.wait()
            finally:
                await asyncio.sleep(0)
                history.append("cleaned up")

    supervisor = Supervisor(clock=fake_clock)
    ref = spawn(supervisor, "careful", Careful, clock=fake_clock)
    asked = asyncio.ensure_future(ref.ask(Wait(asyncio.Event()), timeout_s=10))
    await fake_clock.settle()
    await supervisor.stop()
    assert history == ["cleaned up", "stop"]
    with pytest.raises(Unavailable):
        await asked


async def test_an_actor_that_was_ended_on_purpose_refuses_at_once(supervisor: Supervisor, counter: ActorRef):
    assert await counter.ask(Read(), timeout_s=1) == 0
    await supervisor.cancel("counter")
    with pytest.raises(Unavailable, match="has stopped"):
        await counter.ask(Read(), timeout_s=1)


async def test_a_closed_reference_answers_what_waited_and_takes_nothing_more(fake_clock: FakeClock):
    ref = ActorRef("gone", clock=fake_clock)
    waiting = asyncio.ensure_future(ref.ask(Read(), timeout_s=10))
    await fake_clock.settle()
    ref.close()
    with pytest.raises(Unavailable, match="has stopped"):
        await waiting
    with pytest.raises(Unavailable, match="has stopped"):
        ref.tell(Read())


async def test_a_subclass_inherits_and_overrides_handlers(fake_clock: FakeClock):
    class Doubling(Counter):
        @handles(Add)
        async def add_twice(self, message: Add) -> int:
            self.total += 2 * message.amount
            return self.total

    supervisor = Supervisor(clock=fake_clock)
    ref = spawn(supervisor, "doubling", Doubling, clock=fake_clock)
    assert await ref.ask(Add(2), timeout_s=1) == 4
    assert await ref.ask(Read(), timeout_s=1) == 4
    await supervisor.stop()
