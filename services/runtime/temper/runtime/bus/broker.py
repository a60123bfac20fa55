"""The state behind `MemoryBus`: streams, work queues and buckets in plain dictionaries, on any clock.

One `Broker` plays the server; each `MemoryBus` is one client of it. It knows nothing of protobuf or asyncio tasks: only
what is stored, who holds what until when, and whom to wake.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace

from temper.runtime.clock import Clock
from temper.runtime.envelope import Envelope
from temper.runtime.errors import Conflict, Exhausted
from temper.runtime.topology import CMD, PREFIX, Bucket, Consumer, Stream, Topology

REPORT_AGAIN_S = (
    30.0  # as the advisory consumer's ack wait over NATS: a listener may die with a poisoned command
)
Responder = Callable[[bytes, Envelope], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class Message:
    """A stored message."""

    seq: int
    """Position in its stream."""
    subject: str
    """Subject that it was published on."""
    envelope: Envelope
    """Its attributes."""
    body: bytes
    """Serialized message."""
    time: float
    """Unix seconds at which it was stored."""
    extra: str = ""
    """What a dead letter adds: original subject and reason, separated by a newline."""


class Signal:
    """Wakes everybody who waits for a change."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def next(self) -> asyncio.Event:
        """Set at the next `fire`; take it before looking, so that nothing is missed."""
        return self._next

    def fire(self) -> None:
        """Wake all that wait now."""
        fired, self._next = self._next, asyncio.Event()
        fired.set()


class MemoryStream:
    """Messages in order, with a window in which an id is remembered, and limits."""

    def __init__(self, stream: Stream, clock: Clock) -> None:
        self._limits, self._clock = stream, clock
        self.messages: OrderedDict[int, Message] = OrderedDict()
        self.last_seq = 0
        self.changed = Signal()
        self._seen: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def add(self, subject: str, envelope: Envelope, body: bytes, *, msg_id: str, extra: str = "") -> int:
        """Store; returns the position, of the first one if the id is known. Exhausted when full and refusing."""
        now = self._clock.now()
        self._forget(now)
        known = self._seen.get(msg_id)
        if known is not None:
            return known[0]
        limit = self._limits.max_messages
        if 0 <= limit <= len(self.messages):
            if self._limits.discard == "new":
                raise Exhausted(f"{subject}: maximum messages exceeded", hint="wait until work is taken")
            self.messages.popitem(last=False)
        self.last_seq += 1
        self.messages[self.last_seq] = Message(self.last_seq, subject, envelope, body, now, extra)
        self._seen[msg_id] = (self.last_seq, now)
        self.changed.fire()
        return self.last_seq

    def behind(self, seq: int) -> Iterator[Message]:
        """Messages behind position `seq`, oldest first."""
        self._forget(self._clock.now())
        return (message for number, message in list(self.messages.items()) if number > seq)

    def _forget(self, now: float) -> None:
        while self._seen and next(iter(self._seen.values()))[1] + self._limits.duplicate_window_s < now:
            self._seen.popitem(last=False)
        age = self._limits.max_age_s
        while age and self.messages and next(iter(self.messages.values())).time + age < now:
            self.messages.popitem(last=False)


@dataclass(slots=True)
class Handout:
    """A command in a worker's hands."""

    message: Message
    """The command."""
    count: int
    """How often it was handed out."""
    until: float
    """Monotonic time at which it is taken back."""


class WorkQueue:
    """Commands of one service: each in one worker's hands at a time, taken back after silence."""

    def __init__(self, stream: MemoryStream, consumer: Consumer, clock: Clock) -> None:
        self._stream, self.consumer, self._clock = stream, consumer, clock
        self._held: dict[int, Handout] = {}
        self._counts: dict[int, int] = {}
        self._not_before: dict[int, float] = {}
        self.poisoned: OrderedDict[int, int] = OrderedDict()
        self._reported: dict[int, float] = {}
        self.poison_arrived = Signal()

    def take(self) -> Handout | None:
        """The next command that may be handed out, if any."""
        now = self._clock.monotonic()
        self._take_back(now)
        if len(self._held) >= self.consumer.max_ack_pending:
            return None
        for seq, message in self._stream.messages.items():
            if self._free(seq, message, now):
                self._counts[seq] = self._counts.get(seq, 0) + 1
                handout = Handout(message, self._counts[seq], now + self.consumer.ack_wait_s)
                self._held[seq] = handout
                return handout
        return None

    def next_due_in(self) -> float | None:
        """Seconds until the next change that comes by itself."""
        now = self._clock.monotonic()
        times = [each.until for each in self._held.values()] + [
            t for t in self._not_before.values() if t > now
        ]
        return max(min(times) - now, 0.0) if times else None

    def next_poisoned(self) -> tuple[Message, int] | None:
        """A command that was handed out too often and that no listener has yet, with its count."""
        now = self._clock.monotonic()
        for seq, count in self.poisoned.items():
            if self._reported.get(seq, now) <= now and seq in self._stream.messages:
                self._reported[seq] = now + REPORT_AGAIN_S
                return self._stream.messages[seq], count
        return None

    def pass_on(self, seqs: list[int]) -> None:
        """Leave these poisoned commands to another listener."""
        for seq in seqs:
            self._reported.pop(seq, None)
        self.poison_arrived.fire()

    def finish(self, handout: Handout) -> None:
        """Forget the command; also after it was taken back: the effect is done."""
        self.forget(handout.message.seq)

    def forget(self, seq: int) -> None:
        """Remove a command, whoever holds it."""
        self._stream.messages.pop(seq, None)
        for table in (self._held, self._counts, self._not_before, self._reported, self.poisoned):
            table.pop(seq, None)
        self._stream.changed.fire()

    def release(self, handout: Handout, delay_s: float) -> None:
        """Hand it out again, not before `delay_s` from now; no effect if it was taken back already."""
        seq = handout.message.seq
        if self._held.get(seq) is handout:
            del self._held[seq]
            self._not_before[seq] = self._clock.monotonic() + delay_s
            self._stream.changed.fire()

    def is_held(self, handout: Handout) -> bool:
        """Whether it has not been taken back."""
        self._take_back(self._clock.monotonic())
        return self._held.get(handout.message.seq) is handout

    def extend(self, handout: Handout) -> None:
        """The worker is alive: wait anew."""
        handout.until = self._clock.monotonic() + self.consumer.ack_wait_s

    def _free(self, seq: int, message: Message, now: float) -> bool:
        if seq in self._held or seq in self.poisoned or self._not_before.get(seq, now) > now:
            return False
        if not matches(self.consumer.subjects, message.subject):
            return False
        if self._counts.get(seq, 0) < self.consumer.max_deliver or self.consumer.max_deliver < 0:
            return True
        self.poisoned[seq] = self._counts[seq]
        self.poison_arrived.fire()
        return False

    def _take_back(self, now: float) -> None:
        for seq in [seq for seq, handout in self._held.items() if handout.until <= now]:
            del self._held[seq]


@dataclass(slots=True)
class Value:
    """A value in a bucket; None is a deletion."""

    value: bytes | None
    """Bytes, or None for a deletion."""
    revision: int
    """Position of the write in the bucket."""
    time: float
    """Unix seconds of the write."""


class MemoryBucket:
    """Last values with revisions that grow with every write of any key."""

    def __init__(self, bucket: Bucket, clock: Clock) -> None:
        self._bucket, self._clock = bucket, clock
        self.values: dict[str, Value] = {}
        self.revision = 0
        self.changed = Signal()

    def live(self, key: str) -> Value | None:
        """The value, if there is one and it is not too old."""
        self.expire()
        found = self.values.get(key)
        return found if found is not None and found.value is not None else None

    def write(self, key: str, value: bytes | None, expected: int | None) -> int:
        """Write (None: delete); Conflict unless the key is at revision `expected` (0: absent, None: any)."""
        self.expire()
        found = self.values.get(key)
        present = found.revision if found is not None and (found.value is not None or expected) else 0
        if expected is not None and present != expected:
            raise Conflict(f"{key}: changed meanwhile", field="key")
        self.revision += 1
        self.values[key] = Value(value, self.revision, self._clock.now())
        self.changed.fire()
        return self.revision

    def expire(self) -> None:
        """Delete what is too old."""
        if not self._bucket.ttl_s:
            return
        oldest = self._clock.now() - self._bucket.ttl_s
        for key, found in self.values.items():
            if found.value is not None and found.time < oldest:
                self.revision += 1
                self.values[key] = Value(None, self.revision, self._clock.now())
                self.changed.fire()


@dataclass(slots=True, eq=False)
class Service:
    """Somebody who answers requests on a subject."""

    queue: str | None
    """Group whose members take turns; None: answers alone."""
    respond: Responder
    """Body and envelope in, body out."""


class Broker:
    """The server that all `MemoryBus` clients of one test or process share."""

    def __init__(self, clock: Clock, topology: Topology) -> None:
        self.clock, self.topology = clock, topology
        self.streams = {each.name: MemoryStream(each, clock) for each in topology.all_streams()}
        self.buckets = {each.name: MemoryBucket(each, clock) for each in topology.buckets}
        self.services: dict[str, list[Service]] = {}
        self._queues: dict[str, WorkQueue] = {}

    def queue(self, service: str, ack_wait_s: float | None = None) -> WorkQueue:
        """The work queue of a service; the last ack wait given holds, as with a durable consumer."""
        found = self._queues.get(service)
        if found is None:
            found = WorkQueue(self.streams[CMD], self.topology.consumer(service), self.clock)
            self._queues[service] = found
        if ack_wait_s is not None:
            found.consumer = replace(found.consumer, ack_wait_s=ack_wait_s)
        return found

    def responder(self, subject: str) -> Service | None:
        """Who answers the next request on `subject`: members of a group take turns."""
        services = self.services.get(subject)
        if not services:
            return None
        services.append(services.pop(0))
        return services[-1]


def matches(pattern: str, subject: str) -> bool:
    """NATS wildcards: `*` is one token, a final `>` one or more."""
    wanted, given = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted.pop()
        if len(given) <= len(wanted):
            return False
        given = given[: len(wanted)]
    return len(wanted) == len(given) and all(w in ("*", g) for w, g in zip(wanted, given, strict=True))


def dead_subject(subject: str) -> str:
    """`temper.v1.cmd.rollout.job7` -> `temper.v1.dead.rollout.job7`."""
    rest = subject.removeprefix(f"{PREFIX}.").partition(".")[2]
    return f"{PREFIX}.dead.{rest or subject}"
