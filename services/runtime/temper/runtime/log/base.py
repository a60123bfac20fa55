"""The event log: facts, in order by key, for as many readers as there are.

A reader's position is an opaque token that it keeps itself (in its checkpoint), so there are no consumer groups and
no committed offsets to disagree with the reader's own state. Delivery is at least once: an append is idempotent by id
within the backend's window, and readers still deduplicate by id.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType, Protocol, TypeVar

from google.protobuf.message import DecodeError, Message

from temper.runtime.errors import Rejected

M = TypeVar("M", bound=Message)

Token = NewType("Token", str)
"""Position in a topic: opaque outside the backend that made it; ordered per (topic, key)."""


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One fact. Example: `LogRecord("trajectories", "job7", Token("41"), "job7-12", "…GroupRecord", b"…", 1.7e9)`."""

    topic: str
    """Topic, without prefix: `trajectories`, `steps`, `jobs`, …"""
    key: str
    """What it is about; order holds within one key."""
    token: Token
    """Its position: hand it to `read(after=…)` to go on behind it."""
    id: str
    """Idempotency key: a reader drops one it has seen."""
    type: str
    """Full protobuf name of the body."""
    body: bytes
    """Serialized message."""
    time: float
    """Unix seconds at which it was appended."""

    def message(self, message_type: type[M]) -> M:
        """The body parsed; Rejected if it is something else."""
        expected = message_type.DESCRIPTOR.full_name
        if self.type != expected:
            raise Rejected(f"record is a {self.type}, expected {expected}", field="type")
        try:
            return message_type.FromString(self.body)
        except DecodeError as broken:
            raise Rejected(f"record is not a {expected}: {broken}", field="body") from None


class EventLog(Protocol):
    """Append and read facts. Raises Unavailable when the backend cannot be reached in bounded time."""

    async def connect(self) -> None:
        """Raises Unavailable if the backend cannot be reached now."""
        ...

    async def close(self) -> None:
        """Flush and release the connection."""
        ...

    async def append(self, topic: str, key: str, msg: Message, *, id: str) -> Token:  # noqa: A002  # the envelope's word
        """Persist a fact; returns once it is durable."""
        ...

    async def read(
        self,
        topic: str,
        *,
        key: str | None = None,
        after: Token | None = None,
        max_records: int = 100,
        timeout_s: float = 1.0,
    ) -> list[LogRecord]:
        """Records behind `after` (from the oldest retained when None), of one key or of all.

        Waits up to `timeout_s` for the first one, then returns what is there, at most `max_records`; empty on timeout.
        """
        ...

    async def end(self, topic: str, key: str | None = None) -> Token | None:
        """Position of the last record; None when there is none."""
        ...
