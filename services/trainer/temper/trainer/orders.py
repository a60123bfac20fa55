"""What the job's gates want of its training: KV ``jobs``, key ``<job>.gate``, written by the job's actor.

A rollback is an order with a number. The ledger says how many were carried out, so an order that is read again, by this trainer or by the
next one, is carried out once. An actor that was replaced has a lower fence and is not listened to.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing

from google.protobuf.message import DecodeError

from temper.api.job.v1.job_pb2 import GateRecord
from temper.runtime.bus.base import Bus, Entry
from temper.runtime.telemetry import get_logger
from temper.trainer.patience import Patience

BUCKET = "jobs"


class Orders:
    """The newest wishes of one job's actor."""

    def __init__(self, bus: Bus, job_id: str, patience: Patience, changed: Callable[[], None]) -> None:
        self._bus, self._key, self._patience, self._changed = bus, f"{job_id}.gate", patience, changed
        self._record = GateRecord()

    async def run(self) -> None:
        """Watch for ever. Raises Unavailable when the broker stays away at the start."""
        bucket = await self._patience(lambda: self._bus.kv(BUCKET), BUCKET)
        async with aclosing(bucket.watch(self._key)) as changes:
            async for item in changes:
                if isinstance(item, Entry) and item.key == self._key:
                    self._take(item)

    def _take(self, entry: Entry) -> None:
        try:
            record = GateRecord.FromString(entry.value)
        except DecodeError as broken:
            get_logger().error("trainer.orders_unreadable", key=entry.key, error=str(broken))
            return
        if record.fence >= self._record.fence:
            self._record = record
            self._changed()

    @property
    def accepted_step(self) -> int:
        """Step of the last accepted evaluation."""
        return self._record.accepted_step

    @property
    def held_versions(self) -> frozenset[int]:
        """Versions whose weights must stay."""
        return frozenset(self._record.held_versions)

    def rollback(self, done: int) -> GateRecord | None:
        """The order that is still to be carried out when ``done`` were."""
        return self._record if self._record.rollbacks > done else None
