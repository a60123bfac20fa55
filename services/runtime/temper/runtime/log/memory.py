"""The event log inside one process, on any clock."""

from __future__ import annotations

from contextlib import suppress

from google.protobuf.message import Message

from temper.runtime.bus.broker import Signal
from temper.runtime.clock import Clock, SystemClock
from temper.runtime.envelope import type_of
from temper.runtime.errors import Rejected
from temper.runtime.log.base import LogRecord, Token
from temper.runtime.topology import log, token


class MemoryLog:
    """Facts in lists. A token is the position in the topic, counted from 1."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._topics: dict[str, list[LogRecord]] = {}
        self._places: dict[tuple[str, str], Token] = {}
        self._changed = Signal()

    async def connect(self) -> None:
        """Nothing to connect to."""

    async def close(self) -> None:
        """Nothing to release."""

    async def append(self, topic: str, key: str, msg: Message, *, id: str) -> Token:  # noqa: A002  # the envelope's word
        """Keep a fact; a second one with the same id is the first."""
        log(topic, key)  # Rejected for names that a broker would refuse
        known = self._places.get((topic, id))
        if known is not None:
            return known
        records = self._topics.setdefault(topic, [])
        place = Token(str(len(records) + 1))
        body = msg.SerializeToString()
        records.append(LogRecord(topic, key, place, id, type_of(msg), body, self._clock.now()))
        self._places[topic, id] = place
        self._changed.fire()
        return place

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
        with suppress(TimeoutError):
            async with self._clock.timeout(timeout_s):
                while not self._behind(topic, key, after):
                    await self._changed.next().wait()
        return self._behind(topic, key, after)[:max_records]

    async def end(self, topic: str, key: str | None = None) -> Token | None:
        """Position of the last record."""
        found = self._behind(topic, key, None)
        return found[-1].token if found else None

    def _behind(self, topic: str, key: str | None, after: Token | None) -> list[LogRecord]:
        if after is not None and not after.isdecimal():
            raise Rejected(f"{after!r} is not a token of this log", field="after")
        records = self._topics.get(token(topic), [])[int(after or 0) :]
        return [record for record in records if key is None or record.key == key]
