"""Reads a job's trajectories in the background: records into the ledger, and the bytes of groups when they are wanted.

The log is read from the ledger's offset on, so after a restart what was settled is seen again and ignored, and what was pending is
pending again. Blobs are fetched only for groups that a step is about to train on, after the staleness filter. Quarantines come in
beside the records; those in force at the start are known before the first record is judged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from temper.api.rollout.v1.rollout_pb2 import GroupRecord
from temper.runtime.blobs import BlobStore
from temper.runtime.bus.base import Bus
from temper.runtime.errors import Rejected
from temper.runtime.log.base import EventLog, LogRecord, Token
from temper.runtime.telemetry import get_logger
from temper.trainer import intake
from temper.trainer.orders import Orders
from temper.trainer.patience import Patience
from temper.trainer.quarantine import Quarantines
from temper.trainer.samples import Sample
from temper.trainer.state import Arrival, Drop, Ledger

TOPIC = "trajectories"
MOST_RECORDS = 256


class Feed:
    """The incoming side of one job's training."""

    def __init__(
        self,
        bus: Bus,
        log: EventLog,
        blobs: BlobStore,
        job_id: str,
        ledger: Ledger,
        patience: Patience,
        news: asyncio.Event,
        *,
        poll_s: float,
    ) -> None:
        self._log = log
        self._blobs = blobs
        self._job = job_id
        self._ledger = ledger
        self._patience = patience
        self._poll_s = poll_s
        self._groups: dict[int, GroupRecord] = {}
        self._tables: dict[int, asyncio.Task[bytes | None]] = {}
        self._busy: Sequence[Arrival] = ()
        self._news = news
        self._quarantines = Quarantines(bus, ledger, patience, news.set)
        self.orders = Orders(bus, job_id, patience, news.set)

    async def run(self) -> None:
        """Read for ever. Raises Unavailable when the log or the broker stays away."""
        beside = (self._quarantines.run(), self.orders.run(), self._records())
        tasks = [asyncio.create_task(each) for each in beside]
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                await task  # raises why it ended
        finally:
            for task in (*tasks, *self._tables.values()):
                task.cancel()
            await asyncio.wait((*tasks, *self._tables.values()))

    async def _records(self) -> None:
        await self._quarantines.known.wait()
        after = Token(self._ledger.offset) if self._ledger.offset else None
        while True:
            records = await self._patience(lambda after=after: self._read(after), "trajectories")
            for record in records:
                after = record.token
                arrival, group = intake.arrival(record)
                self._ledger.arrive(arrival)
                if arrival.index in self._ledger.pending:
                    self._groups[arrival.index] = group
            if records:
                self._news.set()
                self._fetch_next()

    async def _read(self, after: Token | None) -> list[LogRecord]:
        return await self._log.read(
            TOPIC, key=self._job, after=after, max_records=MOST_RECORDS, timeout_s=self._poll_s
        )

    def group(self, arrival: Arrival) -> GroupRecord:
        """The record of a pending group."""
        assert arrival.index is not None
        return self._groups[arrival.index]

    def fetch_ahead(self, taken: Sequence[Arrival]) -> None:
        """While a step is made of ``taken``, fetch what the next one will probably be made of, also of what comes meanwhile."""
        self._busy = taken
        self._fetch_next()

    def _fetch_next(self) -> None:
        if not self._busy:
            return
        for arrival in self._ledger.upcoming(self._busy):
            if arrival.index is not None and arrival.index not in self._tables:
                self._tables[arrival.index] = asyncio.create_task(self._table(arrival))

    async def samples(
        self, taken: Sequence[Arrival], *, needs_reward: bool, vocabulary: int | None = None
    ) -> list[Sample] | None:
        """Samples of these groups in order; None when one was unreadable and had to be dropped."""
        self._busy = ()
        tables = await asyncio.gather(*(self._fetched(arrival) for arrival in taken))
        out: list[Sample] = []
        whole = True
        for arrival, data in zip(taken, tables, strict=True):
            first = out[-1].group + 1 if out else 0
            try:
                if data is None:
                    raise Rejected("missing or altered")
                group = self.group(arrival)
                out += intake.samples(
                    group, data, first_group=first, needs_reward=needs_reward, vocabulary=vocabulary
                )
            except Rejected as error:
                self._corrupt(arrival, str(error))
                whole = False
        return out if whole else None

    async def _fetched(self, arrival: Arrival) -> bytes | None:
        """The bytes of a group, perhaps under way already."""
        assert arrival.index is not None
        return await (self._tables.pop(arrival.index, None) or self._table(arrival))

    async def _table(self, arrival: Arrival) -> bytes | None:
        ref = self.group(arrival).table
        try:
            return await self._patience(lambda: self._blobs.get(ref), ref.key)
        except Rejected as error:
            get_logger().warning("trainer.table_unreadable", group=arrival.group_id, error=str(error))
            return None

    def _corrupt(self, arrival: Arrival, why: str) -> None:
        assert arrival.index is not None
        get_logger().error("trainer.group_corrupt", group=arrival.group_id, error=why)
        self._ledger.drop(arrival.index, Drop.CORRUPT)

    def forget_settled(self) -> None:
        """Let go of records that no step will ask for."""
        pending = self._ledger.pending
        for index in self._tables.keys() - pending.keys():
            self._tables.pop(index).cancel()
        self._groups = {index: group for index, group in self._groups.items() if index in pending}
