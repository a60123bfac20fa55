"""The event log on JetStream: a stream per topic, a subject per key. A token is the position in the topic's stream."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import suppress

from google.protobuf.message import Message

from temper.runtime.bus.jetstream import Metadata
from temper.runtime.bus.link import RawMessage
from temper.runtime.bus.pull import Reader
from temper.runtime.bus.streams import StreamBus
from temper.runtime.clock import Clock, SystemClock
from temper.runtime.envelope import Envelope, decode, encode, type_of
from temper.runtime.errors import Rejected
from temper.runtime.log.base import LogRecord, Token
from temper.runtime.topology import PREFIX, log, log_stream, token

_Place = tuple[str, str | None, int]  # topic, key, position: where a reader stands
MOST_READERS = 32  # idle readers kept open, each a consumer on the server


class JetStreamLog:
    """Facts on the server that also carries the bus; `connect` is the bus's business."""

    def __init__(self, bus: StreamBus, *, clock: Clock | None = None) -> None:
        self._js, self._source = bus.js, bus.source
        self._clock = clock or SystemClock()
        self._idle: OrderedDict[_Place, Reader] = OrderedDict()

    async def connect(self) -> None:
        """Nothing to do: the bus holds the connection."""

    async def close(self) -> None:
        """Close the readers."""
        while self._idle:
            _, reader = self._idle.popitem()
            await reader.close()

    async def append(self, topic: str, key: str, msg: Message, *, id: str) -> Token:  # noqa: A002  # the envelope's word
        """Persist a fact."""
        envelope = Envelope(id, type_of(msg), self._source, key, self._clock.now())
        seq, _ = await self._js.publish(log(topic, key), msg.SerializeToString(), encode(envelope), msg_id=id)
        return Token(str(seq))

    async def read(
        self,
        topic: str,
        *,
        key: str | None = None,
        after: Token | None = None,
        max_records: int = 100,
        timeout_s: float = 1.0,
    ) -> list[LogRecord]:
        """Records behind `after`."""
        position = _position(after)
        reader = self._idle.pop((topic, key, position), None) or await self._open(topic, key, position)
        try:
            records = await self._collect(reader, topic, max_records, timeout_s)
        except BaseException:
            await reader.close()
            raise
        await self._keep((topic, key, reader.position), reader)
        return records

    async def end(self, topic: str, key: str | None = None) -> Token | None:
        """Position of the last record."""
        subject = log(topic, key) if key is not None else f"{PREFIX}.log.{token(topic)}.>"
        stored = await self._js.stored(log_stream(topic), subject=subject)
        return Token(str(stored.seq)) if stored else None

    async def _open(self, topic: str, key: str | None, position: int) -> Reader:
        subject = log(topic, key) if key is not None else f"{PREFIX}.log.{token(topic)}.>"
        return await Reader(self._js, log_stream(topic), (subject,), after=position).open()

    async def _collect(self, reader: Reader, topic: str, most: int, timeout_s: float) -> list[LogRecord]:
        records: list[LogRecord] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                records.append(_record(topic, *await reader.next()))
        while reader.buffered and len(records) < most:
            records.append(_record(topic, *reader.take()))
        return records

    async def _keep(self, place: _Place, reader: Reader) -> None:
        replaced = self._idle.pop(place, None)
        self._idle[place] = reader
        if replaced is not None:
            await replaced.close()
        if len(self._idle) > MOST_READERS:
            _, oldest = self._idle.popitem(last=False)
            await oldest.close()


def _position(after: Token | None) -> int:
    if after is None:
        return 0
    if not after.isdecimal():
        raise Rejected(f"{after!r} is not a token of this log", field="after")
    return int(after)


def _record(topic: str, message: RawMessage, about: Metadata) -> LogRecord:
    envelope = decode(message.headers)
    key = message.subject.rpartition(".")[2]
    return LogRecord(
        topic, key, Token(str(about.stream_seq)), envelope.id, envelope.type, message.data, about.time
    )
