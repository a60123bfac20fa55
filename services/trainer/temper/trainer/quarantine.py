"""Environments that qa withdraws while a job trains: KV ``environments``, as far as the ledger is concerned.

What is quarantined before a group is consumed keeps the group out of training. Between a quarantine and an admission that follows a
new check nothing changes, so a check under way lifts nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing

from google.protobuf.message import DecodeError

from temper.api.qa.v1.qa_pb2 import EnvironmentRecord, EnvironmentState
from temper.runtime.bus.base import Bus, Entry, Settled
from temper.runtime.telemetry import get_logger
from temper.trainer.patience import Patience
from temper.trainer.state import Ledger

BUCKET = "environments"
QUARANTINED, ADMITTED = (
    EnvironmentState.ENVIRONMENT_STATE_QUARANTINED,
    EnvironmentState.ENVIRONMENT_STATE_ADMITTED,
)


class Quarantines:
    """Tells one job's ledger. ``known`` is set once everything that was there at the start has been told."""

    def __init__(self, bus: Bus, ledger: Ledger, patience: Patience, changed: Callable[[], None]) -> None:
        self._bus, self._ledger, self._patience, self._changed = bus, ledger, patience, changed
        self.known = asyncio.Event()
        self._log = get_logger()

    async def run(self) -> None:
        """Watch for ever. Raises Unavailable when the broker stays away at the start."""
        bucket = await self._patience(lambda: self._bus.kv(BUCKET), BUCKET)
        async with aclosing(bucket.watch()) as changes:
            async for item in changes:
                if isinstance(item, Settled):
                    self.known.set()
                elif isinstance(item, Entry):
                    self._take(item)

    def _take(self, entry: Entry) -> None:
        try:
            record = EnvironmentRecord.FromString(entry.value)
        except DecodeError as broken:  # one bad value must not end the training of all jobs
            self._log.error("trainer.environment_unreadable", key=entry.key, error=str(broken))
            return
        digest = record.env.digest
        if record.state == QUARANTINED and digest not in self._ledger.withdrawn:
            self._ledger.withdraw(digest)
            self._log.warning("trainer.environment_withdrawn", env=record.env.name, reason=record.reason)
            self._changed()
        elif record.state == ADMITTED:
            self._ledger.readmit(digest)
