"""Commands on JetStream: a durable work queue per service, and what becomes of those that nobody can finish."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

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
ACK, NAK, WORKING, TERM = b"+ACK", b"-NAK", b"+WPI", b"+TERM"

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class NatsDelivery:
    """One command in the hands of this worker."""

    __slots__ = ("_about", "_js", "_letters", "_on_settled", "_raw", "_settled", "envelope")

    def __init__(
        self,
        js: JetStream,
        letters: DeadLetters,
        raw: RawMessage,
        envelope: Envelope,
        about: Metadata,
        on_settled: Callable[[], None],
    ) -> None:
        self._js, self._letters, self._raw, self._about = js, letters, raw, about
        self._on_settled = on_settled
        self._settled = False
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

    def message(self, message_type: type[M]) -> M:
        return parse(self.envelope, self.body, message_type)

    async def ack(self) -> None:
        await self._settle(ACK)

    async def nak(self, delay_s: float = 0.0) -> None:
        delay = b" " + json.dumps({"delay": int(delay_s * 1e9)}).encode() if delay_s > 0 else b""
        await self._settle(NAK + delay)

    async def term(self, reason: str) -> None:
        if not self._settled:
            msg_id = f"{CMD}-{self._about.stream_seq}.dead"
            await self._letters.add(self.subject, self.envelope, self.body, reason, msg_id=msg_id)
        await self._settle(TERM)

    async def in_progress(self) -> None:
        if not self._settled:
            await self._js.link.publish(self._raw.reply, WORKING)

    async def _settle(self, verdict: bytes) -> None:
        if self._settled:
            return
        self._settled = True
        try:
            await self._js.settle(self._raw.reply, verdict)
        finally:
            self._on_settled()


class CommandSource:
    """Fetches commands of one consumer, at most `concurrency` of them unsettled."""

    def __init__(self, js: JetStream, letters: DeadLetters, consumer: Consumer, concurrency: int) -> None:
        self._js, self._letters, self._consumer = js, letters, consumer
        self._concurrency = concurrency
        self._unsettled = 0
        self._queue: asyncio.Queue[NatsDelivery | None] = asyncio.Queue()
        self._chores: set[asyncio.Task[None]] = set()
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

    def stop(self) -> None:
        """End the iteration after what is being handled."""
        self._queue.put_nowait(None)

    async def _hand_back(self) -> None:
        await self._puller.stop()
        while not self._queue.empty():
            delivery = self._queue.get_nowait()
            if delivery is not None:
                with suppress(Unavailable):  # the ack wait hands it back as well, only later
                    await delivery.nak()

    def _room(self) -> int:
        return self._concurrency - self._unsettled

    def _on_message(self, raw: RawMessage) -> None:
        about = metadata(raw.reply)
        self._unsettled += 1
        try:
            envelope = decode(raw.headers, attempt=about.delivered)
        except Rejected as malformed:
            envelope = Envelope(id=f"{self._consumer.stream}-{about.stream_seq}", type="")
            delivery = NatsDelivery(self._js, self._letters, raw, envelope, about, self._on_settled)
            self._chore(delivery.term(f"malformed: {malformed}"))
            return
        self._queue.put_nowait(NatsDelivery(self._js, self._letters, raw, envelope, about, self._on_settled))

    def _chore(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)

    def _on_settled(self) -> None:
        self._unsettled -= 1
        self._puller.wake()

    async def _renew(self) -> None:
        await self._js.put_consumer(self._consumer.stream, consumer_config(self._consumer))


class NatsPoisoned:
    """A command that was handed out too often; the advisory that says so is acked when it has been dealt with."""

    __slots__ = ("_advisory", "_js", "_letters", "_seq", "body", "delivered", "envelope", "subject")

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

    def message(self, message_type: type[M]) -> M:
        return parse(self.envelope, self.body, message_type)

    async def bury(self, reason: str) -> None:
        msg_id = f"{CMD}-{self._seq}.dead"
        await self._letters.add(self.subject, self.envelope, self.body, reason, msg_id=msg_id)
        with suppress(Missing):  # buried by somebody who died before saying so
            await self._js.erase(CMD, self._seq)
        await self._js.settle(self._advisory.reply, ACK)


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
        try:
            while (advisory := await self._queue.get()) is not None:
                found = await self._find(advisory)
                if found is not None:
                    yield found
                self._puller.wake()
        finally:
            await self._puller.stop()

    def stop(self) -> None:
        """End the iteration."""
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
