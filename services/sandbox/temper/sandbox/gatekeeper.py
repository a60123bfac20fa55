"""Asks a person before something runs or leaves, and waits: the hands of `approvals`.

The question lies in KV `approvals` before anybody waits, so the death of this service loses nothing: whoever asks the same
again finds it, answered or not. The wait itself is short: a caller whose answer is not there yet is told to ask again
(`Exhausted`), so no request of the bus is held open while a person thinks.
"""

import contextlib
from collections.abc import Mapping
from typing import Any, Final

from temper.api.sandbox.v1.approval_pb2 import Approval
from temper.runtime.bus.base import Bus, Entry, KeyValue
from temper.runtime.clock import Clock
from temper.runtime.errors import Conflict, Exhausted, Unavailable
from temper.sandbox import approvals

BUCKET: Final = "approvals"
_TRIES: Final = 8


class Gatekeeper:
    """One per service. `hold_s` is the longest wait of one call, `expires_s` how long a person has."""

    def __init__(self, bus: Bus, clock: Clock, *, expires_s: float, hold_s: float) -> None:
        self._bus = bus
        self._clock = clock
        self._expires_s = expires_s
        self._hold_s = hold_s

    async def ask(
        self, kind: str, subject: Mapping[str, Any], *, session: str, job: str = "", env: str = ""
    ) -> Approval:
        """The answer: granted, denied or expired. Raises Exhausted while there is none."""
        asked = approvals.question(
            kind,
            subject,
            session=session,
            job=job,
            env=env,
            now=self._clock.now(),
            expires_s=self._expires_s,
        )
        bucket = await self._bus.kv(BUCKET)
        found = await self._stored(bucket, asked)
        if found.state == approvals.PENDING:
            found = await self._wait(bucket, found)
        if found.state == approvals.PENDING:
            raise Exhausted(
                f"waits for approval {found.approval_id}",
                field="approval",
                hint=f"temper approvals grant {found.approval_id}; then ask again",
            )
        return found

    async def settled(
        self, kind: str, subject: Mapping[str, Any], *, session: str, job: str = ""
    ) -> Approval:
        """The answer, however long it takes; a person has `expires_s`, then it is no."""
        while True:
            try:
                return await self.ask(kind, subject, session=session, job=job)
            except Exhausted:
                continue

    async def _stored(self, bucket: KeyValue, asked: Approval) -> Approval:
        """Store the question unless it is there, before anybody waits for it."""
        with contextlib.suppress(Conflict):
            await bucket.create(asked.approval_id, asked.SerializeToString())
            return asked
        entry = await bucket.get(asked.approval_id)
        stored = Approval.FromString(entry.value) if entry is not None else asked
        if not approvals.same(asked, stored):
            raise Conflict(f"approval {asked.approval_id} is about something else", field="approval")
        return stored

    async def _wait(self, bucket: KeyValue, record: Approval) -> Approval:
        """Until it is answered, expires, or `hold_s` is over."""
        left = approvals.seconds(record.expires_at) - self._clock.now()
        with contextlib.suppress(TimeoutError):
            async with self._clock.timeout(max(0.0, min(left, self._hold_s))):
                return await self._answered(bucket, record.approval_id)
        return await self._expired(bucket, record.approval_id)

    async def _answered(self, bucket: KeyValue, key: str) -> Approval:
        async with contextlib.aclosing(bucket.watch(key)) as items:
            async for item in items:
                if isinstance(item, Entry) and item.key == key:
                    record = Approval.FromString(item.value)
                    if record.state != approvals.PENDING:
                        return record
        raise Unavailable("the watch of approvals ended")

    async def _expired(self, bucket: KeyValue, key: str) -> Approval:
        """As it is now; what is overdue is written down as expired, so that no later answer counts."""
        for _ in range(_TRIES):
            entry = await bucket.get(key)
            if entry is None:
                break
            record = Approval.FromString(entry.value)
            if not approvals.overdue(record, self._clock.now()):
                return record
            with contextlib.suppress(Conflict):  # somebody was first: look again
                ended = approvals.expire(record, self._clock.now())
                await bucket.update(key, ended.SerializeToString(), entry.revision)
                return ended
        raise Exhausted(f"approval {key} changes too fast", field="approval", hint="ask again")
