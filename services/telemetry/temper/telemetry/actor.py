"""Ingestion: one pass every two seconds over the topics of the log; rows first, the position after them.

setup     open the database, learn how far each topic was read
pass      ask each topic for its end; read what lies before it in batches; insert; note the position
failure   log or database away: wait, open again, go on from the last noted position (repeats are absorbed)
"""

from __future__ import annotations

import asyncio

from temper.runtime.clock import Clock
from temper.runtime.errors import Conflict, Exhausted, Rejected, Unavailable
from temper.runtime.log.base import EventLog, LogRecord, Token
from temper.runtime.telemetry import get_logger
from temper.telemetry import rows
from temper.telemetry.config import IngestConfig
from temper.telemetry.metrics import Metrics
from temper.telemetry.state import Progress
from temper.telemetry.storage import Storage

READ_S = 2.0  # for records that are known to be there
AWAY = (Unavailable, Exhausted, Conflict)


class Ingestor:
    """Moves the log into the database, for ever."""

    def __init__(
        self, log: EventLog, storage: Storage, clock: Clock, config: IngestConfig, metrics: Metrics
    ) -> None:
        self.progress = Progress(rows.TOPICS)
        self._log = log
        self._storage = storage
        self._clock = clock
        self._config = config
        self._metrics = metrics
        self._restored = False
        self._wake = asyncio.Event()
        self._moved = asyncio.Event()

    async def run(self) -> None:
        """Pass after pass; what is away is waited for."""
        while True:
            try:
                await self.once()
                pause_s = self._config.interval_s
            except AWAY as error:
                get_logger().warning("ingestion.waiting", error=str(error))
                pause_s = self._config.retry_s
            await self._pause(pause_s)

    async def once(self) -> None:
        """One pass; afterwards everything that was in the log at its beginning is stored."""
        self._wake.clear()
        self.progress.begin()
        await asyncio.gather(*(self._find_end(topic) for topic in self.progress.topics))
        if any(topic.end is not None for topic in self.progress.topics.values()):
            await self._restore()
            for topic in self.progress.topics:
                await self._catch_up(topic)
            await self._note()
        self.progress.finish()
        self._moved.set()
        self._moved = asyncio.Event()

    async def fresh(self, timeout_s: float) -> None:
        """Return once everything that is in the log now is stored; Unavailable after `timeout_s` seconds."""
        ticket = self.progress.take_ticket()
        try:
            async with self._clock.timeout(timeout_s):
                while not self.progress.served(ticket):
                    self._wake.set()
                    await self._moved.wait()
        except TimeoutError:
            behind = [name for name, topic in self.progress.topics.items() if topic.behind]
            raise Unavailable(
                f"not everything is stored after {timeout_s:g} s",
                field="fresh",
                hint=f"behind: {', '.join(behind) or 'the log does not answer'}; ask without fresh, or later",
            ) from None

    async def _restore(self) -> None:
        """Learn, once, how far each topic was read; an empty log needs no database, so none is opened for it."""
        if not self._restored:
            self.progress.restore(await self._storage.positions())
            self._restored = True

    async def _find_end(self, topic: str) -> None:
        self.progress.topics[topic].end = await self._log.end(topic)

    async def _catch_up(self, topic: str) -> None:
        """Read and store until the end that was known at the beginning of the pass."""
        state = self.progress.topics[topic]
        end = state.end
        while end is not None and state.token != end:
            after = Token(state.token) if state.token is not None else None
            records = await self._log.read(
                topic, after=after, max_records=self._config.batch, timeout_s=READ_S
            )
            if not records:  # what lay before the end has expired
                return
            await self._store(topic, records)
            if any(record.token == end for record in records):
                return
            await self._note()  # a long way to go: do not begin again at its start

    async def _store(self, topic: str, records: list[LogRecord]) -> None:
        started = self._clock.monotonic()
        self.progress.read(topic, len(records))
        await self._storage.insert(self._understood(topic, records))
        self.progress.stored(topic, records[-1].token, len(records))
        self._metrics.stored(topic, len(records), self._clock.monotonic() - started)

    async def _note(self) -> None:
        """Write down how far each topic is, after the rows: a crash in between repeats rows and loses none."""
        if moved := self.progress.moved:
            await self._storage.insert([rows.positions(moved, self._clock.now())])
            self.progress.noted(moved)

    def _understood(self, topic: str, records: list[LogRecord]) -> list[rows.Batch]:
        """Rows of all records; a foreign record is left out and told, it must not stop the others."""
        try:
            return rows.batches(records)
        except Rejected:
            return rows.batches(record for record in records if self._is_understood(topic, record))

    def _is_understood(self, topic: str, record: LogRecord) -> bool:
        try:
            rows.batches([record])
        except Rejected as error:
            self._metrics.skipped(topic)
            get_logger().warning("ingestion.skipped", topic=topic, id=record.id, error=str(error))
            return False
        return True

    async def _pause(self, seconds: float) -> None:
        """Wait for the next pass, less when somebody asks for fresh data."""
        try:
            async with self._clock.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return
