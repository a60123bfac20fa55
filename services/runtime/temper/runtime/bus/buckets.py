"""Key-value buckets on JetStream, in the layout of NATS key-value buckets (stream `KV_<bucket>`)."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from temper.runtime.bus.base import Deleted, Entry, Settled, WatchItem, checked_key
from temper.runtime.bus.jetstream import EXPECTED_REVISION, JetStream
from temper.runtime.bus.link import RawMessage
from temper.runtime.bus.pull import Reader
from temper.runtime.errors import Conflict

OPERATION = "KV-Operation"
MARKER = "Nats-Marker-Reason"  # the server's own note that a value grew too old
_GONE = {"DEL", "PURGE"}


class JetStreamKeyValue:
    """One bucket."""

    def __init__(self, js: JetStream, bucket: str) -> None:
        self._js = js
        self._stream = f"KV_{bucket}"
        self._prefix = f"$KV.{bucket}."

    async def get(self, key: str) -> Entry | None:
        """The last value; None if absent or deleted."""
        stored = await self._js.stored(self._stream, subject=self._prefix + checked_key(key))
        if stored is None or _is_gone(stored.headers):
            return None
        return Entry(key, stored.data, stored.seq)

    async def put(self, key: str, value: bytes) -> int:
        """Write whatever is there."""
        return await self._write(key, value, {})

    async def create(self, key: str, value: bytes) -> int:
        """Write if absent; Conflict otherwise."""
        try:
            return await self._write(key, value, {EXPECTED_REVISION: "0"})
        except Conflict:
            stored = await self._js.stored(self._stream, subject=self._prefix + key)
            if stored is None or not _is_gone(stored.headers):
                raise Conflict(f"{key} exists already", field="key") from None
            return await self._write(key, value, {EXPECTED_REVISION: str(stored.seq)})

    async def update(self, key: str, value: bytes, revision: int) -> int:
        """Write if unchanged; Conflict otherwise."""
        return await self._write(key, value, {EXPECTED_REVISION: str(revision)})

    async def delete(self, key: str, revision: int | None = None) -> None:
        """Leave a marker that the key is gone."""
        headers = {OPERATION: "DEL"}
        if revision is not None:
            headers[EXPECTED_REVISION] = str(revision)
        await self._write(key, b"", headers)

    async def keys(self, prefix: str = "") -> list[str]:
        """Live keys, sorted."""
        live: set[str] = set()
        async with aclosing(self.watch(prefix)) as items:
            async for item in items:
                match item:
                    case Settled():
                        break
                    case Entry(key):
                        live.add(key)
                    case Deleted(key):
                        live.discard(key)
        return sorted(live)

    async def watch(self, prefix: str = "") -> AsyncGenerator[WatchItem, None]:
        """Current values, `Settled`, then changes."""
        tokens = prefix.rpartition(".")[0]
        subject = f"{self._prefix}{tokens + '.' if tokens else ''}>"
        reader = await Reader(self._js, self._stream, (subject,), last_per_subject=True).open()
        try:
            settled = reader.waiting == 0
            if settled:
                yield Settled()
            while True:
                message, about = await reader.next()
                item = self._item(message, about.stream_seq)
                if item.key.startswith(prefix):
                    yield item
                if not settled and about.pending == 0:
                    settled = True
                    yield Settled()
        finally:
            await reader.close()

    def _item(self, message: RawMessage, revision: int) -> Entry | Deleted:
        key = message.subject.removeprefix(self._prefix)
        if _is_gone(message.headers or {}):
            return Deleted(key, revision)
        return Entry(key, message.data, revision)

    async def _write(self, key: str, value: bytes, headers: Mapping[str, str]) -> int:
        # The random id makes a retry after a lost answer safe: the server recognizes its own first success.
        subject = self._prefix + checked_key(key)
        seq, _ = await self._js.publish(subject, value, headers, msg_id=uuid.uuid4().hex)
        return seq


def _is_gone(headers: Mapping[str, str]) -> bool:
    return headers.get(OPERATION) in _GONE or MARKER in headers
