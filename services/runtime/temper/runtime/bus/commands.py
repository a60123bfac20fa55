"""Commands on JetStream: a durable work queue per service, and what becomes of those that nobody can finish."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import suppress
from time import monotonic
from typing import Any, TypeVar

import structlog
from google.protobuf.message import Message

from temper.runtime.bus.jetstream import JetStream, Metadata, Missing, consumer_config, metadata
from temper.runtime.bus.letters import DeadLetters
from temper.runtime.bus.link import RawMessage
from temper.runtime.bus.pull import Puller
from temper.runtime.envelope import Envelope, decode, parse
from temper.runtime.errors import Rejected, Unavailable
from temper.runtime.topology import CMD, MAX_DELIVERIES, POISON, Consumer

M = TypeVar("M", bound=Message)
LATER_S = 0.05  # past the ack wait, so that a comparison of clocks falls on the right side
ACK, NAK, WORKING, TERM = b"+ACK", b"-NAK", b"+WPI", b"+TERM"

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class NatsDelivery:
    """One command in the hands of this worker."""

    __slots__ = ("_about", "_js", "_letters", "_on_settled", "_raw", "_settled", "_sign", "envelope")

    def __init__(
        self,
        js: JetStream,
        letters: DeadLetters,
        raw: RawMessage,
        envelope: Envelope,
        about: Metadata,
        on_settled: Callable[[NatsDelivery], None],
    ) -> None:
        self._js, self._letters, self._raw, self._about = js, letters, raw, about
        self._on_settled = on_settled
        self._settled = False
        self._sign = monotonic()
        self.envelope = envelope

    @property
    def subject(self) -> str:
        return self._raw.subject

    @property
    def body(self) -> bytes:
        return self._raw.data

    @property
    def delivered(self) -> int:
        return self._about.delivered

    @property
    def seq(self) -> int:
        """Position in the command stream: tells two deliveries of one command from two commands."""
        return self._about.stream_seq

    def silent_for(self) -> float:
        """Seconds since the worker got it or last tried to say that it is alive."""
        return monotonic() - self._sign

    def renew(self, raw: RawMessage, about: Metadata) -> None:
        """The server handed the command out again, to us: answer under the new delivery from now on."""
        self._raw, self._about = raw, about

    def message(self, message_type: type[M]) -> M:
        return parse(self.envelope, self.body, message_type)

    async def ack(self) -> None:
        await self._settle(ACK)

    async def nak(self, delay_s: float = 0.0) -> None:
        delay = b" " + json.dumps({"delay": int(delay_s * 1e9)}).encode() if delay_s > 0 else b""
        await self._settle(NAK + delay)

    async def term(self, reason: str) -> None:
        if not self._settled:
            msg_id = f"{CMD}-{self.seq}.dead"
            await self._letters.add(self.subject, self.envelope, self.body, reason, msg_id=msg_id)
        await self._settle(TERM)

    async def in_progress(self) -> None:
        if not self._settled:
            self._sign = monotonic()
            await self._js.link.publish(self._raw.reply, WORKING)

    async def _settle(self, verdict: bytes) -> None:
        if self._settled:
            return
        self._settled = True
        try:
            await self._js.settle(self._raw.reply, verdict)
        finally:
            self._on_settled(self)


class CommandSource:
    """Fetches commands of one consumer, at most `concurrency` of them in this worker's hands.

    A command whose worker has been silent for the ack wait is not in its hands any more: the server gives it to
    somebody, and its place here is free. A command that comes again although its worker still tries to beat (the
    broker was away for longer than the ack wait) is not handed out twice here.
    """

    def __init__(self, js: JetStream, letters: DeadLetters, consumer: Consumer, concurrency: int) -> None:
        self._js, self._letters, self._consumer = js, letters, consumer
        self._concurrency = concurrency
        self._held: dict[int, NatsDelivery] = {}
        self._queue: asyncio.Queue[NatsDelivery | None] = asyncio.Queue()
        self._chores: set[asyncio.Future[None]] = set()
        self._puller = Puller(js.link, room=self._room, deliver=self._on_message, renew=self._renew)

    async def deliveries(self) -> AsyncGenerator[NatsDelivery, None]:
        """Each command as soon as it comes, until `stop`."""
        await self._renew()
        await self._puller.start(self._consumer.stream, self._consumer.service)
        try:
            while (delivery := await self._queue.get()) is not None:
                yield delivery
        finally:
            await self._hand_back()

    async def stop(self) -> None:
        """Fetch no more, hand back what was not seen, end the iteration."""
        await self._hand_back()
        self._queue.put_nowait(None)

    async def _hand_back(self) -> None:
        await self._puller.stop()
        while not self._queue.empty():
            delivery = self._queue.get_nowait()
            if delivery is not None:
                with suppress(Unavailable):  # the ack wait hands it back as well, only later
                    await delivery.nak()

    def _room(self) -> int:
        lost = [seq for seq, each in self._held.items() if each.silent_for() > self._consumer.ack_wait_s]
        for seq in lost:
            del self._held[seq]
        return self._concurrency - len(self._held)

    def _on_message(self, raw: RawMessage) -> None:
        about = metadata(raw.reply)
        held = self._held.get(about.stream_seq)
        if held is not None and held.silent_for() < self._consumer.ack_wait_s:
            held.renew(raw, about)
            self._puller.wake()
            return
        try:
            envelope = decode(raw.headers, attempt=about.delivered)
        except Rejected as malformed:
            nameless = Envelope(id=f"{self._consumer.stream}-{about.stream_seq}", type="")
            self._chore(self._hold(raw, nameless, about).term(f"malformed: {malformed}"))
            return
        self._queue.put_nowait(self._hold(raw, envelope, about))

    def _hold(self, raw: RawMessage, envelope: Envelope, about: Metadata) -> NatsDelivery:
        delivery = NatsDelivery(self._js, self._letters, raw, envelope, about, self._on_settled)
        self._held[delivery.seq] = delivery
        # Look then whether its place has become free.
        asyncio.get_running_loop().call_later(self._consumer.ack_wait_s + LATER_S, self._puller.wake)
        return delivery

    def _chore(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)

    def _on_settled(self, delivery: NatsDelivery) -> None:
        if self._held.get(delivery.seq) is delivery:
            del self._held[delivery.seq]
        self._puller.wake()

    async def _renew(self) -> None:
        await self._js.put_consumer(self._consumer.stream, consumer_config(self._consumer))


class NatsPoisoned:
    """A command that was handed out too often; the advisory that says so is acked when it has been dealt with."""

    __slots__ = ("_advisory", "_js", "_letters", "_seq", "body", "buried", "delivered", "envelope", "subject")

    def __init__(
        self,
        js: JetStream,
        letters: DeadLetters,
        advisory: RawMessage,
        seq: int,
        delivered: int,
        subject: str,
        envelope: Envelope,
        body: bytes,
    ) -> None:
        self._js, self._letters, self._advisory, self._seq = js, letters, advisory, seq
        self.delivered, self.subject, self.envelope, self.body = delivered, subject, envelope, body
        self.buried = False

    def message(self, message_type: type[M]) -> M:
        return parse(self.envelope, self.body, message_type)

    async def bury(self, reason: str) -> None:
        msg_id = f"{CMD}-{self._seq}.dead"
        await self._letters.add(self.subject, self.envelope, self.body, reason, msg_id=msg_id)
        with suppress(Missing):  # buried by somebody who died before saying so
            await self._js.erase(CMD, self._seq)
        await self._js.settle(self._advisory.reply, ACK)
        self.buried = True

    async def pass_on(self) -> None:
        """Leave it to another listener, unless it has been buried."""
        if not self.buried:
            await self._js.settle(self._advisory.reply, NAK)


def poison_consumer(service: str) -> Consumer:
    """The consumer of the advisories about one service's commands."""
    return Consumer(
        f"poison_{service}",
        stream=POISON,
        filter=f"{MAX_DELIVERIES}.{CMD}.{service}",
        ack_wait_s=30.0,  # dealing with one takes a few writes
        max_deliver=-1,  # until it has been dealt with
    )


class PoisonSource:
    """Follows the server's advisories."""

    def __init__(self, js: JetStream, letters: DeadLetters, service: str) -> None:
        self._js, self._letters = js, letters
        self._consumer = poison_consumer(service)
        self._queue: asyncio.Queue[RawMessage | None] = asyncio.Queue()
        self._puller = Puller(
            js.link, room=lambda: 16 - self._queue.qsize(), deliver=self._queue.put_nowait, renew=self._renew
        )

    async def poisoned(self) -> AsyncGenerator[NatsPoisoned, None]:
        """Each poisoned command, until `stop`."""
        await self._renew()
        await self._puller.start(POISON, self._consumer.service)
        handed_out: list[NatsPoisoned] = []
        try:
            while (advisory := await self._queue.get()) is not None:
                found = await self._find(advisory)
                if found is not None:
                    handed_out = [each for each in handed_out if not each.buried] + [found]
                    yield found
                self._puller.wake()
        finally:
            await self._puller.stop()
            for each in handed_out:
                with suppress(Unavailable):  # the ack wait gives it to the next listener as well, only later
                    await each.pass_on()

    async def stop(self) -> None:
        """End the iteration; what was not dealt with comes again."""
        await self._puller.stop()
        self._queue.put_nowait(None)

    async def _find(self, advisory: RawMessage) -> NatsPoisoned | None:
        said = json.loads(advisory.data)
        seq, delivered = int(said["stream_seq"]), int(said["deliveries"])
        stored = await self._js.stored(CMD, seq=seq)
        if stored is None:
            await self._js.settle(advisory.reply, ACK)  # acked or buried meanwhile
            return None
        envelope = decode(stored.headers, attempt=delivered)
        return NatsPoisoned(
            self._js, self._letters, advisory, seq, delivered, stored.subject, envelope, stored.data
        )

    async def _renew(self) -> None:
        await self._js.put_consumer(POISON, consumer_config(self._consumer))
