"""The work queue of the twin in memory: whatever workers and time do, no command is lost and none is in two hands."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.contract.harness import small_topology

from temper.runtime.bus.broker import Broker, Handout, WorkQueue
from temper.runtime.envelope import Envelope
from temper.runtime.errors import Exhausted
from temper.runtime.topology import CMD, cmd

ACK_WAIT_S, MOST, LIMIT = 0.5, 2, 6


class TurnedClock:
    """Time without an event loop."""

    def __init__(self) -> None:
        self.elapsed = 0.0

    def now(self) -> float:
        return 1e9 + self.elapsed

    def monotonic(self) -> float:
        return self.elapsed


class Queue(RuleBasedStateMachine):
    """A publisher, workers that settle, drop or beat, a listener that buries poison, and time."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = TurnedClock()
        broker = Broker(self.clock, small_topology(max_messages=LIMIT))  # type: ignore[arg-type]  # it never sleeps
        self.stream = broker.streams[CMD]
        self.queue: WorkQueue = broker.queue("rollout")
        self.hands: list[Handout] = []
        self.published: set[str] = set()
        self.finished: set[str] = set()
        self.buried: set[str] = set()
        self.counts: dict[str, int] = {}

    def _held(self) -> list[Handout]:
        return [each for each in self.hands if self.queue.is_held(each)]

    @rule(number=st.integers(0, 20))
    def publish(self, number: int) -> None:
        name = f"c{number}"
        full = len(self.stream.messages) >= LIMIT
        try:
            self.stream.add(cmd("rollout", "job1"), Envelope(name, "x"), b"", msg_id=name)
        except Exhausted:
            assert full
            assert name not in self.published
            return
        self.published.add(name)

    @rule()
    def take(self) -> None:
        handout = self.queue.take()
        if handout is None:
            return
        name = handout.message.envelope.id
        assert name not in self.finished | self.buried
        self.counts[name] = self.counts.get(name, 0) + 1
        assert handout.count == self.counts[name] <= MOST
        self.hands.append(handout)

    @precondition(lambda self: self.hands)
    @rule(data=st.data(), verdict=st.sampled_from(["ack", "nak", "later"]))
    def settle(self, data: st.DataObject, verdict: str) -> None:
        handout = data.draw(st.sampled_from(self.hands))
        name = handout.message.envelope.id
        if verdict == "ack":
            self.queue.finish(handout)
            if name not in self.buried:
                self.finished.add(name)
        else:
            self.queue.release(handout, 2.0 if verdict == "later" else 0.0)
        self.hands.remove(handout)

    @precondition(lambda self: self.hands)
    @rule(data=st.data())
    def beat(self, data: st.DataObject) -> None:
        self.queue.extend(data.draw(st.sampled_from(self.hands)))

    @rule(seconds=st.sampled_from([0.1, ACK_WAIT_S, 3.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.elapsed += seconds

    @rule()
    def bury(self) -> None:
        found = self.queue.next_poisoned()
        if found is None:
            return
        message, delivered = found
        assert delivered == MOST
        assert message.envelope.id not in self.finished
        self.queue.forget(message.seq)
        self.buried.add(message.envelope.id)

    @invariant()
    def nothing_is_lost(self) -> None:
        queued = {message.envelope.id for message in self.stream.messages.values()}
        assert queued | self.finished | self.buried == self.published
        assert not queued & (self.finished | self.buried)

    @invariant()
    def nothing_is_in_two_hands(self) -> None:
        names = [each.message.envelope.id for each in self._held()]
        assert len(names) == len(set(names))

    def teardown(self) -> None:
        """Workers that do their work bring every command to an end."""
        for _ in range(200):
            self.clock.elapsed += 3.0
            handout = self.queue.take()
            if handout is not None:
                self.queue.finish(handout)
                self.finished.add(handout.message.envelope.id)
            self.bury()
        assert self.finished | self.buried == self.published


TestQueue = Queue.TestCase
TestQueue.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
