"""Leases: at most one owner of a key, and a number that proves who is newer.

The record holds the owner and for how long its word is good. Nobody compares clocks of two machines: an observer counts,
on its own monotonic clock, how long the record has not changed since it first saw it, and takes over after the duration
*written in the record*. The owner counts from before it began to write, and stops at two thirds of that. So the owner
always stops first, as long as both clocks run at nearly the same rate.

       owner      write ──── renew at 1/3 ──── … ──── stops itself at 2/3 ┄┄┄┄
       observer       sees ───────────────────────────────────────────────── 3/3: takes over

The revision of the acquiring write is the fence: it grows from owner to owner. A receiver of effects keeps the highest
fence seen per key (`FenceGuard`) and refuses older ones, which covers what no lease can: an owner that was asleep.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass

from temper.runtime.bus.base import Entry, KeyValue
from temper.runtime.clock import Clock
from temper.runtime.errors import Conflict, Rejected, Stale, TemperError, Unavailable

RENEW = 1 / 3  # of the ttl: two renewals may fail before the owner stops
STOP = 2 / 3  # of the ttl: leaves a third for slow clocks and slow stopping
AGAIN = 1 / 12  # of the ttl: after a renewal that failed
LOOK = 1 / 4  # of the ttl: how often a standby looks


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """Value in the bucket. Example: `LeaseRecord("scheduler/4f2a", 6.0, 17)`."""

    owner: str
    """Who holds it; unique per process."""
    ttl_s: float
    """How long the record is good without a change."""
    beat: int
    """Counts renewals, so that each one changes the value."""

    def encode(self) -> bytes:
        """JSON."""
        return json.dumps({"owner": self.owner, "ttl_s": self.ttl_s, "beat": self.beat}).encode()

    @staticmethod
    def decode(value: bytes) -> LeaseRecord:
        """Rejected if it is not a record."""
        try:
            raw = json.loads(value)
            return LeaseRecord(str(raw["owner"]), float(raw["ttl_s"]), int(raw["beat"]))
        except (ValueError, KeyError, TypeError) as broken:
            raise Rejected(f"not a lease: {broken}", field="value") from None


class Lease:
    """One candidate's view of one key."""

    def __init__(self, kv: KeyValue, key: str, *, owner: str, ttl_s: float, clock: Clock) -> None:
        self._kv, self.key, self.owner, self._ttl_s, self._clock = kv, key, owner, ttl_s, clock
        self.lost = asyncio.Event()
        """Set when ownership ends in any way but `release`."""
        self._fence: int | None = None
        self._revision = 0
        self._beat = 0
        self._good_until = 0.0
        self._seen: tuple[int, float] = (0, 0.0)
        self._renewal: asyncio.Task[None] | None = None

    @property
    def fence(self) -> int | None:
        """The fence while the lease is held; None otherwise."""
        return self._fence if self.held else None

    @property
    def held(self) -> bool:
        """Whether we may act as the owner at this moment."""
        return self._fence is not None and self._clock.monotonic() < self._good_until

    async def acquire(self) -> int | None:
        """One attempt: the fence, or None while somebody else holds it. Unavailable if the bucket is unreachable."""
        if self.held:
            return self._fence
        entry = await self._kv.get(self.key)
        began = self._clock.monotonic()
        record = LeaseRecord(self.owner, self._ttl_s, 0)
        try:
            if entry is None:
                revision = await self._kv.create(self.key, record.encode())
            elif self._is_expired(entry):
                revision = await self._kv.update(self.key, record.encode(), entry.revision)
            else:
                return None
        except Conflict:
            return None  # another candidate was faster
        return self._own(revision, began)

    async def acquired(self) -> int:
        """Wait until it is ours, for ever; returns the fence."""
        while True:
            with suppress(Unavailable):
                fence = await self.acquire()
                if fence is not None:
                    return fence
            await self._clock.sleep(self._ttl_s * LOOK)

    async def release(self) -> None:
        """Give it up, so that the next owner need not wait."""
        await self._stop_renewal()
        held, self._fence = self._fence is not None, None
        self._good_until = 0.0
        if held:
            with suppress(Conflict, Unavailable):  # taken over already, or it will expire
                await self._kv.delete(self.key, self._revision)

    def _own(self, revision: int, began: float) -> int:
        self.lost.clear()
        self._fence = self._revision = revision
        self._beat = 0
        self._good_until = began + self._ttl_s * STOP
        self._renewal = asyncio.create_task(self._keep())
        return revision

    def _is_expired(self, entry: Entry) -> bool:
        now = self._clock.monotonic()
        if self._seen[0] != entry.revision:
            self._seen = (entry.revision, now)
        return now - self._seen[1] >= LeaseRecord.decode(entry.value).ttl_s

    async def _keep(self) -> None:
        """Renew until that fails for too long."""
        pause = self._ttl_s * RENEW
        while self.held:
            left = self._good_until - self._clock.monotonic()
            await self._clock.sleep(min(pause, left))
            try:
                async with self._clock.timeout(self._good_until - self._clock.monotonic()):
                    renewed = await self._renew()
            except TimeoutError:
                renewed = False
            pause = self._ttl_s * (RENEW if renewed else AGAIN)
        self._fence = None
        self.lost.set()

    async def _renew(self) -> bool:
        if not self.held:
            return False
        began = self._clock.monotonic()
        record = LeaseRecord(self.owner, self._ttl_s, self._beat + 1)
        try:
            self._revision = await self._kv.update(self.key, record.encode(), self._revision)
        except Conflict:
            if not await self._was_ours(record):
                self._good_until = 0.0
                return False
        except TemperError:
            return False  # the bucket is away: again soon, while the lease is good
        self._beat += 1
        self._good_until = began + self._ttl_s * STOP
        return True

    async def _was_ours(self, record: LeaseRecord) -> bool:
        """Whether the conflict is with our own write whose answer was lost."""
        with suppress(TemperError):
            entry = await self._kv.get(self.key)
            if entry is not None and LeaseRecord.decode(entry.value) == record:
                self._revision = entry.revision
                return True
        return False

    async def _stop_renewal(self) -> None:
        task, self._renewal = self._renewal, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


class FenceGuard:
    """Refuses effects of owners that have been replaced. Bounded: forgets the key unused for longest."""

    def __init__(self, capacity: int = 10_000) -> None:
        self._capacity = capacity
        self._highest: OrderedDict[str, int] = OrderedDict()

    def check(self, key: str, fence: int | None) -> None:
        """Stale if a higher fence has been seen for `key`; an effect without a fence is not judged."""
        if fence is None:
            return
        highest = self._highest.pop(key, 0)
        self._highest[key] = max(highest, fence)
        if len(self._highest) > self._capacity:
            self._highest.popitem(last=False)
        if fence < highest:
            raise Stale(f"fence {fence} of {key} is older than {highest}", field="fence")
