"""The bus: commands, requests, events, dead letters and last values.

| verb              | semantics                                                                              |
| ----------------- | -------------------------------------------------------------------------------------- |
| command/commands  | persisted; exactly one worker at a time; acked after the effect; redelivered otherwise |
| request/serve     | question and answer with a deadline; an absent host fails at once                      |
| event/events      | retained for a day; every watcher sees all; resumable by sequence                      |
| dead              | what could not be processed, with the reason                                           |
| kv                | last value by key, watch, compare-and-set; the revision is the fencing token           |

Services know these protocols; `temper.runtime.bus.nats` carries them, `temper.runtime.bus.memory` is the twin with
the same semantics inside one process and on any clock. Every method raises only from `temper.runtime.errors`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Protocol, TypeVar

from google.protobuf.message import Message

from temper.runtime.clock import Clock
from temper.runtime.envelope import Envelope, parse
from temper.runtime.errors import Rejected, Unavailable

M = TypeVar("M", bound=Message)
Req = TypeVar("Req", bound=Message)

Handler = Callable[[Req, Envelope], Awaitable[Message]]


class Delivery(Protocol):
    """One command in the hands of one worker. Exactly one of `ack`, `nak`, `term` ends it; the first one counts."""

    @property
    def subject(self) -> str: ...
    @property
    def envelope(self) -> Envelope: ...
    @property
    def body(self) -> bytes: ...
    @property
    def delivered(self) -> int:
        """How often it was handed out, this time included."""
        ...

    def message(self, message_type: type[M]) -> M:
        """The body parsed; Rejected if it is something else."""
        ...

    async def ack(self) -> None:
        """The effect is done: forget the command."""
        ...

    async def nak(self, delay_s: float = 0.0) -> None:
        """Hand it out again, not before `delay_s` seconds from now."""
        ...

    async def term(self, reason: str) -> None:
        """Never hand it out again: it moves to the dead letters with `reason`."""
        ...

    async def in_progress(self) -> None:
        """Still working: the redelivery timer starts again."""
        ...


class Poisoned(Protocol):
    """A command that was handed out the maximum number of times; still in the queue until `bury` or `retry`."""

    @property
    def subject(self) -> str: ...
    @property
    def envelope(self) -> Envelope: ...
    @property
    def body(self) -> bytes: ...
    @property
    def delivered(self) -> int: ...

    def message(self, message_type: type[M]) -> M: ...

    async def bury(self, reason: str) -> None:
        """Move it to the dead letters with `reason`."""
        ...


@dataclass(frozen=True, slots=True)
class Event:
    """One event. Example: `Event(41, "temper.v1.evt.scheduler.job7", envelope, b"…")`."""

    seq: int
    """Position in the stream: hand it to `events(after=…)` to go on from here."""
    subject: str
    """Subject that it was published on."""
    envelope: Envelope
    """Its attributes."""
    body: bytes
    """Serialized message."""

    def message(self, message_type: type[M]) -> M:
        """The body parsed; Rejected if it is something else."""
        return parse(self.envelope, self.body, message_type)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One message that nobody could process. Example: `DeadLetter(3, "temper.v1.cmd.rollout.job7", "poison", …)`."""

    seq: int
    """Position in the dead stream: names it to `retry` and `drop`."""
    subject: str
    """Subject that the command was published on."""
    reason: str
    """Why it was given up."""
    envelope: Envelope
    """Its attributes."""
    body: bytes
    """Serialized message."""
    time: float
    """Unix seconds at which it was given up."""

    def message(self, message_type: type[M]) -> M:
        """The body parsed; Rejected if it is something else."""
        return parse(self.envelope, self.body, message_type)


class Subscription(Protocol):
    """A served subject."""

    async def stop(self) -> None:
        """Take no new request, wait for those in flight; what takes longer than ten seconds is cancelled."""
        ...


@dataclass(frozen=True, slots=True)
class Entry:
    """A value. Example: `Entry("job7", b"…", 41)`."""

    key: str
    """Key in the bucket."""
    value: bytes
    """Bytes, as they were put."""
    revision: int
    """Position of the write in the bucket; grows with every write of any key."""


@dataclass(frozen=True, slots=True)
class Deleted:
    """A key that is gone. Example: `Deleted("job7", 42)`."""

    key: str
    """Key in the bucket."""
    revision: int
    """Position of the deletion in the bucket."""


@dataclass(frozen=True, slots=True)
class Settled:
    """Marker in a watch: everything that was there at its start has been seen."""


WatchItem = Entry | Deleted | Settled


_KEY = re.compile(r"[A-Za-z0-9_=@-]+(\.[A-Za-z0-9_=@-]+)*")


def checked_key(key: str) -> str:
    """`key` if it may name a value; Rejected otherwise."""
    if not _KEY.fullmatch(key):
        raise Rejected(
            f"{key!r} cannot be a key", field="key", hint="letters, digits, '_-=@', in parts joined by '.'"
        )
    return key


class KeyValue(Protocol):
    """Last value by key. Keys: `[A-Za-z0-9_=@-]` tokens separated by dots."""

    async def get(self, key: str) -> Entry | None: ...

    async def put(self, key: str, value: bytes) -> int:
        """Write whatever is there; returns the revision."""
        ...

    async def create(self, key: str, value: bytes) -> int:
        """Write if the key is absent or deleted; Conflict otherwise."""
        ...

    async def update(self, key: str, value: bytes, revision: int) -> int:
        """Write if the key is still at `revision`; Conflict otherwise."""
        ...

    async def delete(self, key: str, revision: int | None = None) -> None:
        """Delete; with `revision`, Conflict unless the key is still there. Deleting nothing is no error."""
        ...

    async def keys(self, prefix: str = "") -> list[str]:
        """Live keys that start with `prefix`, sorted."""
        ...

    def watch(self, prefix: str = "") -> AsyncGenerator[WatchItem, None]:
        """Current values of the keys that start with `prefix`, then `Settled`, then changes for ever.

        Between two changes that come close together only the last need be seen. Survives reconnects.
        """
        ...


class Bus(Protocol):
    """A client's connection to the bus; `source` is stamped on everything it sends."""

    @property
    def source(self) -> str: ...
    @property
    def connected(self) -> bool: ...

    async def connect(self) -> None:
        """Raises Unavailable if the server cannot be reached now."""
        ...

    async def close(self) -> None:
        """Stop fetching, let handlers finish, flush, disconnect."""
        ...

    async def command(
        self,
        subject: str,
        msg: Message,
        *,
        id: str,  # noqa: A002  # the envelope's word
        fence: int | None = None,
        deadline: float | None = None,
        about: str = "",
    ) -> None:
        """Persist a command; a second one with the same `id` is dropped. Exhausted when the queue is full."""
        ...

    def commands(
        self, service: str, *, concurrency: int, ack_wait_s: float | None = None
    ) -> AsyncGenerator[Delivery, None]:
        """Commands for `service`, at most `concurrency` of them unsettled; each one as soon as it comes.

        Closing the iterator (`aclose`) hands back what was fetched and not yet seen.
        """
        ...

    async def request(
        self,
        subject: str,
        msg: Message,
        reply_type: type[M],
        *,
        timeout_s: float,
        fence: int | None = None,
        id: str | None = None,  # noqa: A002  # the envelope's word
    ) -> M:
        """Ask; raises the handler's own TemperError, or Unavailable if nobody serves `subject` or none answers."""
        ...

    async def serve(
        self,
        subject: str,
        request_type: type[Req],
        handler: Handler[Req],
        *,
        queue: str | None = None,
        concurrency: int = 256,
    ) -> Subscription:
        """Answer requests on `subject`; beyond `concurrency` at a time they are refused with Exhausted."""
        ...

    async def event(self, subject: str, msg: Message, *, id: str | None = None, about: str = "") -> int:  # noqa: A002  # the envelope's word
        """Publish an event; returns its sequence."""
        ...

    def events(self, filter: str, *, after: int | None = None) -> AsyncGenerator[Event, None]:  # noqa: A002  # NATS's word
        """Events whose subject matches `filter` (NATS wildcards), in order, for ever.

        `after=None` starts with the next one, `after=0` with the oldest retained, `after=n` behind sequence n.
        """
        ...

    async def dead(self, subject: str, envelope: Envelope, body: bytes, reason: str) -> int:
        """Record a message that cannot be processed; returns its sequence among the dead letters."""
        ...

    async def dead_letters(self, *, after: int = 0, limit: int = 100) -> list[DeadLetter]: ...

    async def retry_dead(self, seq: int) -> None:
        """Publish the command again and drop the letter; NotFound if there is none at `seq`."""
        ...

    async def drop_dead(self, seq: int) -> None:
        """Forget the letter; NotFound if there is none at `seq`."""
        ...

    def poisoned(self, service: str) -> AsyncGenerator[Poisoned, None]:
        """Commands of `service` that were handed out the maximum number of times; each goes to one listener."""
        ...

    async def kv(self, bucket: str) -> KeyValue: ...


@asynccontextmanager
async def kept_alive(delivery: Delivery, every_s: float, clock: Clock) -> AsyncIterator[Delivery]:
    """Signal `in_progress` every `every_s` seconds (a third of the ack wait) while the body runs."""
    beat = asyncio.create_task(_beat(delivery, every_s, clock))
    try:
        yield delivery
    finally:
        beat.cancel()
        with suppress(asyncio.CancelledError):
            await beat


async def _beat(delivery: Delivery, every_s: float, clock: Clock) -> None:
    while True:
        await clock.sleep(every_s)
        with suppress(Unavailable):  # the broker is away: the next beat, or redelivery, settles it
            await delivery.in_progress()
