"""Messages from a JetStream pull consumer, each as soon as it comes.

`Puller` keeps the server informed of how many messages there is room for, and asks again when a request expires, when
room appears, and when the connection came back. `Reader` reads a stream in order and without gaps through an ephemeral
consumer that it makes anew, behind the last message seen, whenever the server has lost it.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from time import monotonic
from typing import Any

import structlog

from temper.runtime.bus.jetstream import API, NANO, JetStream, Metadata, metadata
from temper.runtime.bus.link import Link, RawMessage, RawSubscription
from temper.runtime.errors import TemperError, Unavailable

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

EXPIRES_S = 20.0  # life of one request for messages; a lost one costs at most this
SLACK_S = 2.0  # how much later than that the server's word may arrive
RETRY_S = 0.1  # pause before a consumer that vanished is made again
FORGET_S = 60.0  # silence after which the server drops an ephemeral consumer


class Puller:
    """Asks for as many messages as `room()` says, minus those already asked for.

    `deliver` gets every message; `renew` makes the consumer again when the server does not know it any more.
    """

    def __init__(
        self,
        link: Link,
        *,
        room: Callable[[], int],
        deliver: Callable[[RawMessage], None],
        renew: Callable[[], Awaitable[None]],
    ) -> None:
        self._link = link
        self._room, self._deliver, self._renew = room, deliver, renew
        self._subject = ""
        self._inbox = link.new_inbox()
        self._asked: dict[str, int] = {}
        self._number = 0
        self._outstanding = 0
        self._expiry = 0.0
        self._epoch = link.epoch
        self._lost = False
        self._stopped = False
        self._wake = asyncio.Event()
        self._subscription: RawSubscription | None = None
        self._pump: asyncio.Task[None] | None = None
        self._forget_reconnects = link.on_reconnect(self._wake.set)

    async def start(self, stream: str, consumer: str) -> None:
        """Begin to pull."""
        self.aim(stream, consumer)
        self._subscription = await self._link.subscribe(f"{self._inbox}.*", self._on_message)
        self._pump = asyncio.create_task(self._run())

    def aim(self, stream: str, consumer: str) -> None:
        """Pull from this consumer from now on."""
        self._subject = f"{API}.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._forget_requests()

    def wake(self) -> None:
        """Room has appeared."""
        self._wake.set()

    def renew_soon(self) -> None:
        """Make the consumer again."""
        self._lost = True
        self._wake.set()

    async def stop(self) -> None:
        """Drop interest; messages on their way are delivered again by the server. May be called twice."""
        if self._stopped:
            return
        self._stopped = True
        self._forget_reconnects()
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.wait({self._pump})
        if self._subscription is not None:
            await self._subscription.stop()

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self._turn()
            except TemperError as error:
                if not isinstance(error, Unavailable):
                    _log.warning(
                        "pull_refused", subject=self._subject, error=str(error)
                    )  # e.g. the stream is gone
                await asyncio.sleep(RETRY_S if isinstance(error, Unavailable) else SLACK_S)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(
                    max(0.01, self._expiry - monotonic()) if self._outstanding else SLACK_S
                ):
                    await self._wake.wait()

    async def _turn(self) -> None:
        if self._epoch != self._link.epoch or monotonic() > self._expiry:
            self._forget_requests()
        if self._lost:
            await asyncio.sleep(RETRY_S)
            await self._renew()
            self._lost = False
        room = self._room()
        wanted = room - self._outstanding
        if wanted > 0 and wanted * 2 >= room:  # few large requests instead of many small ones
            await self._ask(wanted)

    async def _ask(self, batch: int) -> None:
        self._number += 1
        inbox = f"{self._inbox}.{self._number}"
        self._asked[inbox] = batch
        self._outstanding += batch
        self._expiry = monotonic() + EXPIRES_S + SLACK_S
        request = {"batch": batch, "expires": int(EXPIRES_S * NANO)}
        try:
            await self._link.publish(self._subject, json.dumps(request).encode(), reply=inbox)
        except Unavailable:
            self._forget_requests()  # neither this one nor any before it will be answered
            raise

    def _forget_requests(self) -> None:
        self._epoch = self._link.epoch
        self._asked.clear()
        self._outstanding = 0

    async def _on_message(self, message: RawMessage) -> None:
        status = message.headers.get("Status") if message.headers else None
        if status is None or message.reply:
            self._outstanding = max(0, self._outstanding - 1)
            if not self._outstanding:
                self._asked.clear()  # the server says nothing when a request has been filled
            self._deliver(message)
            self._wake.set()
            return
        self._on_status(message, status)

    def _on_status(self, message: RawMessage, status: str) -> None:
        headers = message.headers or {}
        asked = self._asked.pop(message.subject, None)
        if asked is not None:
            left = int(headers.get("Nats-Pending-Messages", asked))
            self._outstanding = max(0, self._outstanding - left)
        if status == "503" or (status == "409" and "Deleted" in headers.get("Description", "")):
            self._lost = True
        self._wake.set()


class Reader:
    """Messages of a stream in order, without gaps, across restarts of the server."""

    def __init__(
        self,
        js: JetStream,
        stream: str,
        filters: tuple[str, ...],
        *,
        after: int | None = 0,
        last_per_subject: bool = False,
        window: int = 256,
    ) -> None:
        """Start behind position `after` (None: with the next message), or with the last message of each subject."""
        self._js = js
        self._stream, self._filters, self._window = stream, filters, window
        self.position = after or 0
        self._only_new = after is None
        self._last_per_subject = last_per_subject
        self._queue: deque[tuple[RawMessage, Metadata]] = deque()
        self._arrived = asyncio.Event()
        self._expected = 1
        self._newest = 0
        self._name = ""
        self._puller = Puller(js.link, room=self._room, deliver=self._on_message, renew=self._renew)
        self.waiting = 0
        """How many messages waited when the reader was opened."""

    async def open(self) -> Reader:
        """Create the consumer and begin; Missing if there is no such stream, Unavailable if the server is away."""
        await self._renew()
        await self._puller.start(self._stream, self._name)
        return self

    async def next(self) -> tuple[RawMessage, Metadata]:
        """The next message, whenever it comes."""
        while not self._queue:
            self._arrived.clear()
            await self._arrived.wait()
        return self.take()

    def take(self) -> tuple[RawMessage, Metadata]:
        """The next message, which must be there already (`buffered`)."""
        message, about = self._queue.popleft()
        self.position = about.stream_seq
        if len(self._queue) * 2 == self._window:
            self._puller.wake()  # half of the window is free again
        return message, about

    @property
    def buffered(self) -> int:
        """How many messages `take` can hand out now."""
        return len(self._queue)

    async def close(self) -> None:
        """Stop, and let the server forget the consumer."""
        await self._puller.stop()
        await self._js.drop_reader(self._stream, self._name)

    def _room(self) -> int:
        free = self._window - len(self._queue)
        return free if free * 2 >= self._window else 0

    def _on_message(self, message: RawMessage) -> None:
        about = metadata(message.reply)
        if about.consumer_seq != self._expected:
            if about.consumer_seq > self._expected:
                self._puller.renew_soon()  # something was lost on the way: read again behind the last one seen
            return
        self._expected += 1
        self._newest = about.stream_seq
        self._queue.append((message, about))
        self._arrived.set()

    async def _renew(self) -> None:
        behind = max(self.position, self._newest)
        name, self.waiting = await self._js.new_reader(self._stream, await self._config(behind))
        self._name, self._expected = name, 1
        self._puller.aim(self._stream, name)

    async def _config(self, behind: int) -> dict[str, Any]:
        config: dict[str, Any] = {
            "ack_policy": "none",
            "mem_storage": True,
            "inactive_threshold": int(FORGET_S * NANO),
            "filter_subjects": list(self._filters),
        }
        if self._only_new and not behind:
            # Pin the start, so that a consumer made again does not skip what came in between.
            self._only_new, self.position = False, await self._js.last_seq(self._stream)
            behind = self.position
        if self._last_per_subject and not behind:
            return config | {"deliver_policy": "last_per_subject"}
        if behind and await self._js.last_seq(self._stream) < behind:
            behind = self.position = self._newest = 0  # the stream was made anew: its positions began again
        return config | {"deliver_policy": "by_start_sequence", "opt_start_seq": behind + 1}
