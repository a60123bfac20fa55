"""The bus inside one process: the same semantics as over NATS, on any clock.

Several `MemoryBus` clients share one `Broker`. A client can be `cut` off, as by a broken network: its calls fail with
Unavailable, what it holds is handed to others after the ack wait, and its watches go on where they were after `mend`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator
from typing import Literal, TypeVar

from google.protobuf.message import Message as Proto

from temper.runtime.bus.base import DeadLetter, Delivery, Event, Handler, KeyValue, Poisoned, Subscription
from temper.runtime.bus.broker import REPORT_AGAIN_S, Broker, Message, Service, Signal, dead_subject, matches
from temper.runtime.bus.handles import MemoryDelivery, MemoryKeyValue, MemoryPoisoned, Served
from temper.runtime.clock import Clock, SystemClock
from temper.runtime.envelope import Envelope, parse, type_of
from temper.runtime.errors import (
    Exhausted,
    NotFound,
    TemperError,
    Unavailable,
    from_wire,
    to_status,
)
from temper.runtime.topology import CMD, DEAD, EVT, Topology, load

M = TypeVar("M", bound=Proto)
Req = TypeVar("Req", bound=Proto)


class MemoryBus:
    """One client of a `Broker`."""

    def __init__(
        self, clock: Clock | None = None, *, broker: Broker | None = None, name: str = "temper"
    ) -> None:
        self.clock = clock or (broker.clock if broker else SystemClock())
        self.broker = broker or Broker(self.clock, load())
        self.source = name
        self.connected = False
        self._cut = False
        self._closing = Signal()
        self._closed = False
        self._link_changed = Signal()
        self._served: list[Served] = []
        self._asked: set[asyncio.Future[bytes]] = set()
        self._numbers = itertools.count(1)

    def client(self, name: str) -> MemoryBus:
        """Another client of the same broker."""
        return MemoryBus(self.clock, broker=self.broker, name=name)

    async def connect(self) -> None:
        self.connected = True

    async def close(self) -> None:
        self._closed = True
        self._closing.fire()
        for served in self._served:
            await served.stop()
        self.connected = False

    def cut(self) -> None:
        """Separate this client from the broker."""
        self._cut, self.connected = True, False
        self._link_changed.fire()

    def mend(self) -> None:
        """Connect it again."""
        self._cut, self.connected = False, True
        self._link_changed.fire()

    def reach(self) -> None:
        """Raises Unavailable while cut off."""
        if self._cut:
            raise Unavailable("not connected to the broker")

    async def reached(self) -> None:
        """Wait while cut off."""
        while self._cut:
            await self._link_changed.next().wait()

    async def pause(self, *signals: Signal, at_most_s: float | None = None) -> None:
        """Wait until one of the signals fires, the link changes, the bus closes, or the time is over."""
        signals = (*signals, self._link_changed, self._closing)
        waits = [asyncio.ensure_future(each.next().wait()) for each in signals]
        if at_most_s is not None:
            waits.append(asyncio.ensure_future(self._timer(at_most_s)))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()

    async def _timer(self, seconds: float) -> Literal[True]:
        await self.clock.sleep(seconds)
        return True

    async def command(
        self,
        subject: str,
        msg: Proto,
        *,
        id: str,  # noqa: A002  # the envelope's word
        fence: int | None = None,
        deadline: float | None = None,
        about: str = "",
    ) -> None:
        self.reach()
        envelope = self._envelope(id, msg, about, deadline, fence)
        self.broker.streams[CMD].add(subject, envelope, msg.SerializeToString(), msg_id=id)

    async def commands(
        self, service: str, *, concurrency: int, ack_wait_s: float | None = None
    ) -> AsyncGenerator[Delivery, None]:
        queue = self.broker.queue(service, ack_wait_s)
        held: list[MemoryDelivery] = []
        settled = Signal()
        while not self._closed:
            await self.reached()
            held = [each for each in held if each.holds()]
            handout = queue.take() if len(held) < concurrency else None
            if handout is None:
                await self.pause(self.broker.streams[CMD].changed, settled, at_most_s=queue.next_due_in())
            else:
                held.append(MemoryDelivery(self, queue, handout, settled))
                yield held[-1]

    async def request(
        self,
        subject: str,
        msg: Proto,
        reply_type: type[M],
        *,
        timeout_s: float,
        fence: int | None = None,
        id: str | None = None,  # noqa: A002  # the envelope's word
    ) -> M:
        self.reach()
        service = self.broker.responder(subject)
        if service is None:
            raise Unavailable(f"nobody serves {subject}", hint="it is not up, or its name is another")
        number = id or f"{self.source}#{next(self._numbers)}"
        envelope = self._envelope(number, msg, "", self.clock.now() + timeout_s, fence)
        answer = asyncio.ensure_future(service.respond(msg.SerializeToString(), envelope))
        self._asked.add(answer)  # it goes on when this caller gives up, as on another machine
        answer.add_done_callback(self._answered)
        try:
            async with self.clock.timeout(timeout_s):
                await asyncio.wait({answer})
        except TimeoutError:
            raise Unavailable(f"no answer from {subject} within {timeout_s:g} s") from None
        self.reach()
        return reply_type.FromString(_outcome(answer))

    def _answered(self, answer: asyncio.Future[bytes]) -> None:
        self._asked.discard(answer)
        if not answer.cancelled():
            answer.exception()  # one that nobody waits for any more is no news

    async def serve(
        self,
        subject: str,
        request_type: type[Req],
        handler: Handler[Req],
        *,
        queue: str | None = None,
        concurrency: int = 256,
    ) -> Subscription:
        async def respond(body: bytes, envelope: Envelope) -> bytes:
            if len(served.running) >= concurrency:
                raise Exhausted(f"{concurrency} requests are in flight already")
            answering = asyncio.current_task()
            assert answering is not None, "a request is answered in a task of its own"
            served.running.add(answering)
            try:
                await self.reached()
                return await self._respond(handler, parse(envelope, body, request_type), envelope)
            finally:
                served.running.discard(answering)

        service = Service(queue, respond)
        served = Served(self.broker, subject, service)
        self.broker.services.setdefault(subject, []).append(service)
        self._served.append(served)
        return served

    async def _respond(self, handler: Handler[Req], request: Req, envelope: Envelope) -> bytes:
        left = None if envelope.deadline is None else envelope.deadline - self.clock.now()
        try:
            async with self.clock.timeout(left):
                return (await handler(request, envelope)).SerializeToString()
        except TimeoutError:
            raise Unavailable("the deadline passed while the request was served") from None

    async def event(self, subject: str, msg: Proto, *, id: str | None = None, about: str = "") -> int:  # noqa: A002  # the envelope's word
        self.reach()
        number = id or f"{self.source}#{next(self._numbers)}"
        envelope = self._envelope(number, msg, about, None, None)
        return self.broker.streams[EVT].add(subject, envelope, msg.SerializeToString(), msg_id=number)

    async def events(self, filter: str, *, after: int | None = None) -> AsyncGenerator[Event, None]:  # noqa: A002  # the envelope's word
        stream = self.broker.streams[EVT]
        seen = stream.last_seq if after is None else after
        while True:
            await self.reached()
            for message in stream.behind(seen):
                seen = message.seq
                if matches(filter, message.subject):
                    yield Event(message.seq, message.subject, message.envelope, message.body)
            if not any(stream.behind(seen)):
                await self.pause(stream.changed)

    async def dead(self, subject: str, envelope: Envelope, body: bytes, reason: str) -> int:
        self.reach()
        extra = f"{subject}\n{' '.join(reason.split())}"
        stream = self.broker.streams[DEAD]
        return stream.add(dead_subject(subject), envelope, body, msg_id=f"{envelope.id}.dead", extra=extra)

    async def bury(self, message: Message, reason: str) -> None:
        """Copy a stored command to the dead letters, once."""
        extra = f"{message.subject}\n{' '.join(reason.split())}"
        stream, subject = self.broker.streams[DEAD], dead_subject(message.subject)
        stream.add(subject, message.envelope, message.body, msg_id=f"{CMD}-{message.seq}.dead", extra=extra)

    async def dead_letters(self, *, after: int = 0, limit: int = 100) -> list[DeadLetter]:
        self.reach()
        found = itertools.islice(self.broker.streams[DEAD].behind(after), limit)
        return [_letter(message) for message in found]

    async def retry_dead(self, seq: int) -> None:
        letter = self._dead_letter(seq)
        stream = self.broker.streams[CMD]
        stream.add(letter.subject, letter.envelope, letter.body, msg_id=f"{letter.envelope.id}.retry-{seq}")
        await self.drop_dead(seq)

    async def drop_dead(self, seq: int) -> None:
        self._dead_letter(seq)
        del self.broker.streams[DEAD].messages[seq]

    def _dead_letter(self, seq: int) -> DeadLetter:
        self.reach()
        message = self.broker.streams[DEAD].messages.get(seq)
        if message is None:
            raise NotFound(f"no dead letter {seq}", field="seq", hint="`temper dead list` shows them")
        return _letter(message)

    async def poisoned(self, service: str) -> AsyncGenerator[Poisoned, None]:
        queue = self.broker.queue(service)
        handed_out: list[int] = []
        try:
            while not self._closed:
                await self.reached()
                waiting = queue.next_poisoned()
                if waiting is None:
                    await self.pause(queue.poison_arrived, at_most_s=REPORT_AGAIN_S)
                    continue
                message, delivered = waiting
                handed_out.append(message.seq)
                yield MemoryPoisoned(self, queue, message, delivered)
        finally:
            queue.pass_on(handed_out)

    async def kv(self, bucket: str) -> KeyValue:
        self.broker.topology.bucket(bucket)  # Rejected for a name that is not in the topology
        return MemoryKeyValue(self, self.broker.buckets[bucket])

    async def apply_topology(self, topology: Topology) -> list[str]:
        return []

    async def diff_topology(self, topology: Topology) -> list[str]:
        return [] if topology == self.broker.topology else ["the broker was made with another topology"]

    def _envelope(
        self,
        id: str,  # noqa: A002  # the envelope's word
        msg: Proto,
        about: str,
        deadline: float | None,
        fence: int | None,
    ) -> Envelope:
        return Envelope(id, type_of(msg), self.source, about, self.clock.now(), deadline, fence)


def _outcome(answer: asyncio.Future[bytes]) -> bytes:
    """The reply, or the error as it would arrive over a wire."""
    if answer.cancelled():
        raise Unavailable("the request was cancelled: its host is stopping")
    error = answer.exception()
    if error is None:
        return answer.result()
    if isinstance(error, TemperError):
        raise from_wire(to_status(error))
    raise Unavailable(f"the handler failed: {type(error).__name__}") from error


def _letter(message: Message) -> DeadLetter:
    subject, _, reason = message.extra.partition("\n")
    return DeadLetter(message.seq, subject, reason, message.envelope, message.body, message.time)
