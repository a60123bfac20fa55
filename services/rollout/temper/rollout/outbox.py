"""Where a finished group goes: its table to object storage, then its record to the log."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from typing import TypeVar

from google.protobuf.timestamp_pb2 import Timestamp

from temper.api.rollout.v1.rollout_pb2 import GroupRecord, GroupTable
from temper.runtime.blobs import BlobStore
from temper.runtime.clock import Clock
from temper.runtime.errors import Exhausted, Unavailable
from temper.runtime.log.base import EventLog
from temper.runtime.telemetry import get_logger

TOPIC = "trajectories"
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0

T = TypeVar("T")


class Outbox:
    """Repeats what is idempotent while its store is away: a finished group is worth waiting for."""

    def __init__(self, blobs: BlobStore, log: EventLog, clock: Clock, *, patience_s: float) -> None:
        self._blobs, self._event_log, self._clock, self._patience_s = blobs, log, clock, patience_s
        self._log = get_logger()

    async def put(self, made: GroupTable, record: GroupRecord) -> None:
        """Table, then record. The table's key carries its digest, so a record's table is never overwritten."""
        table = made.SerializeToString(deterministic=True)
        digest = hashlib.sha256(table).hexdigest()[:16]
        key = f"groups/{record.job_id}/{record.group_id}.{digest}.binpb"
        record.table.CopyFrom(await self.insist(lambda: self._blobs.put(key, table)))
        record.finished_at.CopyFrom(now(self._clock))
        await self.insist(lambda: self._event_log.append(TOPIC, record.job_id, record, id=record.group_id))

    async def insist(self, effect: Callable[[], Awaitable[T]]) -> T:
        """Repeat an idempotent effect until it works or the patience is used up."""
        give_up = self._clock.monotonic() + self._patience_s
        pause = _FIRST_PAUSE_S
        while True:
            try:
                return await effect()
            except (Unavailable, Exhausted) as error:
                if self._clock.monotonic() + pause > give_up:
                    raise
                self._log.warning("group.publish_retry", error=str(error))
                await self._clock.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)


def now(clock: Clock) -> Timestamp:
    """The wall clock's time."""
    stamp = Timestamp()
    stamp.FromNanoseconds(int(clock.now() * 1e9))
    return stamp
