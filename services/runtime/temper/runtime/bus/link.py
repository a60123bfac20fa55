"""What the JetStream parts need of a connection. `bus/nats.py` provides it, and is the only file that knows nats-py."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol


class RawMessage(Protocol):
    """A message as it came off the wire."""

    @property
    def subject(self) -> str: ...
    @property
    def reply(self) -> str: ...
    @property
    def data(self) -> bytes: ...
    @property
    def headers(self) -> Mapping[str, str] | None: ...


class RawSubscription(Protocol):
    """Interest in a subject; the connection renews it after a reconnect."""

    async def stop(self, *, drain: bool = False) -> None:
        """Drop interest; with `drain`, first let the callback see what has already come."""
        ...


class Link(Protocol):
    """A connection to a NATS server that comes back by itself."""

    @property
    def connected(self) -> bool: ...

    @property
    def epoch(self) -> int:
        """Grows with every loss of the connection: what was outstanding in an older epoch is lost."""
        ...

    def new_inbox(self) -> str: ...

    def on_reconnect(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after every reconnect; returns the way to stop that."""
        ...

    async def publish(
        self, subject: str, body: bytes, *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        """Raises Unavailable when disconnected, Rejected when the body is over the server's limit."""
        ...

    async def ask(
        self, subject: str, body: bytes, *, timeout_s: float, headers: Mapping[str, str] | None = None
    ) -> RawMessage:
        """Raises Unavailable when disconnected, when nobody listens, or when no answer comes in time."""
        ...

    async def subscribe(
        self, subject: str, callback: Callable[[RawMessage], Awaitable[None]], *, queue: str = ""
    ) -> RawSubscription: ...
