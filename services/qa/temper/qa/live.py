"""Live solve rates: log `trajectories` -> pure state -> a file in object storage, and the records people see.

The file holds the rates together with the log position they stand for, so a restart neither forgets nor counts twice.
The records hold copies. Several instances may run: each counts the whole log by itself and writes the same numbers.
"""

from __future__ import annotations

import json

from temper.api.rollout.v1.rollout_pb2 import GroupRecord
from temper.qa.config import LiveConfig
from temper.qa.metrics import Metrics
from temper.qa.registry import Registry
from temper.qa.state import Change, LiveRates, show_rate
from temper.runtime.blobs import BlobStore
from temper.runtime.clock import Clock
from temper.runtime.errors import Conflict, Exhausted, Rejected, Unavailable
from temper.runtime.log.base import EventLog, LogRecord, Token
from temper.runtime.telemetry import get_logger

TOPIC = "trajectories"
KEY = "qa/live-rates.json"


class Live:
    """Follows the log for ever."""

    def __init__(
        self,
        log: EventLog,
        blobs: BlobStore,
        registry: Registry,
        clock: Clock,
        config: LiveConfig,
        metrics: Metrics,
    ) -> None:
        self._log = log
        self._blobs = blobs
        self._registry = registry
        self._clock = clock
        self._config = config
        self._metrics = metrics
        self._rates = LiveRates()

    async def run(self) -> None:
        """Setup, then read and flush in turns; a log or a store that is away is waited for."""
        self._rates = await self._load()
        while True:
            try:
                await self._turn()
            except (Unavailable, Exhausted) as error:
                get_logger().warning("live.waiting", error=str(error))
                await self._clock.sleep(self._config.flush_s)

    async def _turn(self) -> None:
        """Read for `flush_s` seconds, then write what changed."""
        until = self._clock.monotonic() + self._config.flush_s
        while (left := until - self._clock.monotonic()) > 0:
            after = Token(self._rates.token) if self._rates.token is not None else None
            records = await self._log.read(TOPIC, after=after, max_records=self._config.batch, timeout_s=left)
            for record in records:
                self._observe(record)
            self._metrics.observed(len(records))
        await self.flush()

    async def flush(self) -> None:
        """Write the file, then the records whose rates changed."""
        if not self._rates.changed:
            return
        await self._blobs.put(KEY, json.dumps(self._rates.to_json()).encode())
        for digest, rate in self._rates.take_changed().items():
            for key in self._registry.by_digest(digest):
                await self._show(key, digest, show_rate(rate))

    async def _show(self, key: str, digest: str, change: Change) -> None:
        try:
            await self._registry.change_existing(key, change)
        except Conflict:
            self._rates.changed.add(digest)  # the next flush tries again

    def _observe(self, record: LogRecord) -> None:
        try:
            self._rates.observe(record.message(GroupRecord), record.token)
        except Rejected as error:  # a foreign record must not stop the reader
            self._rates.token = record.token
            get_logger().warning("live.skipped", id=record.id, error=str(error))

    async def _load(self) -> LiveRates:
        try:
            return LiveRates.from_json(json.loads(await self._blobs.read(KEY)))
        except Rejected:
            return LiveRates()  # the first start
        except (KeyError, TypeError, ValueError) as error:
            get_logger().warning("live.restarted", reason=f"{KEY} is damaged: {error}")
            return LiveRates()
