"""The bus on any `Link` to a NATS server: puts requests, commands, events, letters and buckets together."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from google.protobuf.message import Message

from temper.runtime.bus.base import DeadLetter, Delivery, Event, Handler, KeyValue, Poisoned, Subscription
from temper.runtime.bus.buckets import JetStreamKeyValue
from temper.runtime.bus.commands import CommandSource, PoisonSource
from temper.runtime.bus.jetstream import (
    JetStream,
    bucket_config,
    consumer_config,
    stream_config,
    with_ack_wait,
)
from temper.runtime.bus.letters import DeadLetters
from temper.runtime.bus.link import Link
from temper.runtime.bus.pull import Reader
from temper.runtime.bus.requests import Endpoint, read_reply
from temper.runtime.clock import Clock
from temper.runtime.envelope import Envelope, decode, headers
from temper.runtime.errors import Unavailable
from temper.runtime.topology import EVT, Topology, load
from temper.runtime.tracing import current_traceparent

M = TypeVar("M", bound=Message)
Req = TypeVar("Req", bound=Message)


class _Source(Protocol):
    async def stop(self) -> None: ...


class StreamBus:
    """Everything of `Bus` but connecting; `NatsBus` adds that."""

    def __init__(self, link: Link, *, source: str, clock: Clock, topology: Topology | None = None) -> None:
        self._link, self._clock = link, clock
        self.source = source
        self.js = JetStream(link)
        self._letters = DeadLetters(self.js)
        self._topology = topology or load()
        self._sources: set[_Source] = set()
        self._endpoints: set[Endpoint[Any]] = set()
        self._numbers = itertools.count(1)

    @property
    def connected(self) -> bool:
        """Whether there is a connection at this moment."""
        return self._link.connected

    async def drain(self) -> None:
        """Stop fetching, wait for handlers."""
        for source in list(self._sources):
            await source.stop()
        for endpoint in list(self._endpoints):
            await endpoint.stop()

    async def command(
        self,
        subject: str,
        msg: Message,
        *,
        id: str,  # noqa: A002  # the envelope's word
        fence: int | None = None,
        deadline: float | None = None,
        about: str = "",
    ) -> None:
        """Persist a command."""
        attributes = self._headers(id, msg, about, deadline, fence)
        await self.js.publish(subject, msg.SerializeToString(), attributes, msg_id=id)

    async def commands(
        self, service: str, *, concurrency: int, ack_wait_s: float | None = None
    ) -> AsyncGenerator[Delivery, None]:
        """Commands for `service`."""
        consumer = with_ack_wait(self._topology.consumer(service), ack_wait_s)
        source = CommandSource(self.js, self._letters, consumer, concurrency)
        self._sources.add(source)
        deliveries = source.deliveries()
        try:
            async for delivery in deliveries:
                yield delivery
        finally:
            self._sources.discard(source)
            await deliveries.aclose()

    async def request(
        self,
        subject: str,
        msg: Message,
        reply_type: type[M],
        *,
        timeout_s: float,
        fence: int | None = None,
        id: str | None = None,  # noqa: A002  # the envelope's word
    ) -> M:
        """Ask, and wait for the answer."""
        number = id or f"{self.source}#{next(self._numbers)}"
        attributes = self._headers(number, msg, "", self._clock.now() + timeout_s, fence)
        raw = await self._link.ask(subject, msg.SerializeToString(), timeout_s=timeout_s, headers=attributes)
        return read_reply(raw, reply_type, subject)

    async def serve(
        self,
        subject: str,
        request_type: type[Req],
        handler: Handler[Req],
        *,
        queue: str | None = None,
        concurrency: int = 256,
    ) -> Subscription:
        """Answer requests on `subject`."""
        endpoint = Endpoint(
            self._link, self._clock, request_type, handler, concurrency, self._endpoints.discard
        )
        await endpoint.start(subject, queue or "")
        self._endpoints.add(endpoint)
        return endpoint

    async def event(self, subject: str, msg: Message, *, id: str | None = None, about: str = "") -> int:  # noqa: A002  # the envelope's word
        """Publish an event."""
        number = id or f"{self.source}#{self._clock.now():.6f}#{next(self._numbers)}"
        attributes = self._headers(number, msg, about, None, None)
        seq, _ = await self.js.publish(subject, msg.SerializeToString(), attributes, msg_id=number)
        return seq

    async def events(self, filter: str, *, after: int | None = None) -> AsyncGenerator[Event, None]:  # noqa: A002  # the envelope's word
        """Events that match, in order."""
        reader = await Reader(self.js, EVT, (filter,), after=after).open()
        try:
            while True:
                message, about = await reader.next()
                yield Event(about.stream_seq, message.subject, decode(message.headers), message.data)
        finally:
            await reader.close()

    async def dead(self, subject: str, envelope: Envelope, body: bytes, reason: str) -> int:
        """Record a dead letter."""
        return await self._letters.add(subject, envelope, body, reason, msg_id=f"{envelope.id}.dead")

    async def dead_letters(self, *, after: int = 0, limit: int = 100) -> list[DeadLetter]:
        """Dead letters behind position `after`, oldest first."""
        return await self._letters.read(after=after, limit=limit)

    async def retry_dead(self, seq: int) -> None:
        """Publish the command again and drop the letter."""
        await self._letters.retry(seq)

    async def drop_dead(self, seq: int) -> None:
        """Forget the letter."""
        await self._letters.drop(seq)

    async def poisoned(self, service: str) -> AsyncGenerator[Poisoned, None]:
        """Commands of `service` that were handed out too often."""
        source = PoisonSource(self.js, self._letters, service)
        self._sources.add(source)
        found = source.poisoned()
        try:
            async for each in found:
                yield each
        finally:
            self._sources.discard(source)
            with suppress(Unavailable):
                await found.aclose()

    async def kv(self, bucket: str) -> KeyValue:
        """The bucket `bucket` of the topology."""
        return JetStreamKeyValue(self.js, self._topology.bucket(bucket).name)

    async def apply_topology(self, topology: Topology) -> list[str]:
        """Create or change what differs; one line per change."""
        self._topology = topology
        return await self._compare(topology, dry=False)

    async def diff_topology(self, topology: Topology) -> list[str]:
        """One line per difference."""
        return await self._compare(topology, dry=True)

    async def _compare(self, topology: Topology, *, dry: bool) -> list[str]:
        streams = [stream_config(each) for each in topology.all_streams()]
        buckets = [bucket_config(each) for each in topology.buckets]
        lines = [await self.js.put_stream(each, dry=dry) for each in streams + buckets]
        consumers = [(each.stream, consumer_config(each)) for each in topology.consumers]
        lines += [await self.js.put_consumer(stream, each, dry=dry) for stream, each in consumers]
        return [line for line in lines if line]

    def _headers(
        self,
        id: str,  # noqa: A002  # the envelope's word
        msg: Message,
        about: str,
        deadline: float | None,
        fence: int | None,
    ) -> dict[str, str]:
        kind = msg.DESCRIPTOR.full_name
        sent = self._clock.now()
        return headers(id, kind, self.source, about, sent, deadline, fence, 1, current_traceparent())
