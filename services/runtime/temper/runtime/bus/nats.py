"""The bus over NATS. This file is the only one that knows nats-py.

`NatsLink` is the connection: it comes back by itself, for ever, and replaces a client that the library has given up.
`NatsBus` puts the parts together: `requests` (request and reply), `jetstream`, `pull` and `commands` (persisted work),
`buckets` (key-value), `letters` (dead letters). They see the link, never the library.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.subscription import Subscription as NatsSubscription

from temper.runtime.bus.credentials import Credentials
from temper.runtime.bus.headers import from_lines, to_block
from temper.runtime.bus.link import RawMessage
from temper.runtime.bus.streams import StreamBus
from temper.runtime.clock import Clock, SystemClock
from temper.runtime.errors import Rejected, TemperError, Unavailable
from temper.runtime.topology import Topology

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

CONNECT_S = 5.0  # one bounded attempt; run_service repeats it with a message
RECONNECT_PAUSE_S = (
    0.2  # a restarted server is found again at once; a few hundred clients at 5 Hz are no load
)
PING_EVERY_S = 10  # two unanswered ones mean that the connection is dead although nobody said so
WATCH_EVERY_S = 1.0
DRAIN_S = 5.0
NO_RESPONDERS = "503"


class LeanClient(Client):
    """The library's client with a short way for what is sent and received most.

    It relies on a few private names of nats-py, each of which a test checks against the installed release.
    """

    _parse_header_lines = staticmethod(from_lines)

    def post(self, subject: str, reply: str, body: bytes, block: bytes) -> bool:
        """Queue a message with a header block that is encoded already (empty: none).

        Returns whether so much is queued that the sender should wait (`catch_up`).
        """
        size = len(block) + len(body)
        if block:
            line = f"HPUB {subject} {reply} {len(block)} {size}\r\n"
        else:
            line = f"PUB {subject} {reply} {size}\r\n"
        command = b"".join((line.encode(), block, body, b"\r\n"))
        self.stats["out_msgs"] += 1
        self.stats["out_bytes"] += size
        self._pending.append(command)
        self._pending_data_size += len(command)
        if self._flush_queue is not None and self._flush_queue.empty():
            self._flush_queue.put_nowait(asyncio.get_running_loop().create_future())
        return self._pending_data_size > self._max_pending_size

    async def catch_up(self) -> None:
        """Wait until what is queued has been written."""
        await self._flush_pending(force_flush=True)


class _LinkSubscription:
    """Our side of an interest; `attached` is the library's, for the client of the day."""

    def __init__(
        self, link: NatsLink, subject: str, queue: str, callback: Callable[[RawMessage], Awaitable[None]]
    ):
        self._link = link
        self.subject, self.queue = subject, queue
        self._callback = callback
        self._attached: NatsSubscription | None = None

    async def attach(self, client: Client) -> None:
        self._attached = await client.subscribe(self.subject, queue=self.queue, cb=self._callback)

    async def stop(self, *, drain: bool = False) -> None:
        self._link.forget(self)
        if self._attached is None or not self._link.connected:
            return
        with suppress(nats.errors.Error, TimeoutError):  # gone with its connection: there is no interest left
            await (self._attached.drain() if drain else self._attached.unsubscribe())


class NatsLink:
    """A connection that comes back."""

    def __init__(self, url: str, name: str, credentials: Credentials) -> None:
        self._url, self._name, self._credentials = url, name, credentials
        self._client: LeanClient | None = None
        self._up = asyncio.Event()
        self._closing = False
        self.epoch = 0
        self._subscriptions: list[_LinkSubscription] = []
        self._reconnect_callbacks: list[Callable[[], None]] = []
        self._waiting: dict[str, asyncio.Future[RawMessage]] = {}
        self._asked = 0
        self._answers = ""
        self._watch: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        return self._client is not None and self._client.is_connected

    async def connect(self) -> None:
        self._client = await self._new_client()
        self._up.set()
        self._answers = self.new_inbox() + "."
        await self.subscribe(self._answers + "*", self._on_answer)
        self._watch = asyncio.create_task(self._keep_alive())

    async def close(self) -> None:
        self._closing = True
        if self._watch is not None:
            self._watch.cancel()
            with suppress(asyncio.CancelledError):
                await self._watch
        if self._client is None or self._client.is_closed:
            return
        with suppress(nats.errors.Error, TimeoutError, OSError):  # disconnecting from what is gone already
            if self._client.is_connected:
                await self._client.flush(int(DRAIN_S))
            await self._client.close()

    def new_inbox(self) -> str:
        return self._require().new_inbox()

    def on_reconnect(self, callback: Callable[[], None]) -> Callable[[], None]:
        self._reconnect_callbacks.append(callback)
        return lambda: self._reconnect_callbacks.remove(callback)

    def forget(self, subscription: _LinkSubscription) -> None:
        with suppress(ValueError):  # stopped twice
            self._subscriptions.remove(subscription)

    async def subscribe(
        self, subject: str, callback: Callable[[RawMessage], Awaitable[None]], *, queue: str = ""
    ) -> _LinkSubscription:
        subscription = _LinkSubscription(self, subject, queue, callback)
        await subscription.attach(self._require())
        self._subscriptions.append(subscription)
        return subscription

    async def publish(
        self, subject: str, body: bytes, *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        if self._post(subject, body, reply, headers):
            await self._require().catch_up()

    def _post(self, subject: str, body: bytes, reply: str, headers: Mapping[str, str] | None) -> bool:
        client = self._client
        if client is None or not client.is_connected:
            raise Unavailable(f"not connected to {self._url}")
        block = to_block(headers) if headers else b""
        if len(block) + len(body) > client.max_payload:  # the server would close the connection
            raise Rejected(
                f"message of {len(body)} bytes is over the broker's limit of {client.max_payload}",
                field="body",
                hint="send large payloads through object storage",
            )
        return client.post(subject, reply, body, block)

    async def ask(
        self, subject: str, body: bytes, *, timeout_s: float, headers: Mapping[str, str] | None = None
    ) -> RawMessage:
        loop = asyncio.get_running_loop()
        if not self.connected:
            timeout_s = await self._until_up(timeout_s)
        self._asked += 1
        token = str(self._asked)
        answer: asyncio.Future[RawMessage] = loop.create_future()
        self._waiting[token] = answer
        alarm = loop.call_later(timeout_s, _late, answer, subject, timeout_s)
        try:
            if self._post(subject, body, self._answers + token, headers):
                await self._require().catch_up()
            message = await answer
        finally:
            alarm.cancel()
            del self._waiting[token]
        if message.headers and not message.data and message.headers.get("Status") == NO_RESPONDERS:
            raise Unavailable(f"nobody serves {subject}", hint="it is not up, or its name is another")
        return message

    async def _on_answer(self, message: RawMessage) -> None:
        answer = self._waiting.get(message.subject[len(self._answers) :])
        if answer is not None and not answer.done():
            answer.set_result(message)

    async def _until_up(self, timeout_s: float) -> float:
        loop = asyncio.get_running_loop()
        end = loop.time() + (0.0 if self._closing else timeout_s)
        try:
            async with asyncio.timeout_at(end):
                await self._up.wait()
        except TimeoutError:
            raise Unavailable(f"not connected to {self._url}") from None
        return max(0.001, end - loop.time())

    async def _new_client(self) -> LeanClient:
        client = LeanClient()
        failures: asyncio.Queue[Exception] = asyncio.Queue(len(self._url.split(",")))
        connecting = asyncio.ensure_future(self._open(client, failures))
        failing = asyncio.ensure_future(self._all_servers_failed(failures))
        try:
            await asyncio.wait({connecting, failing}, timeout=CONNECT_S, return_when=asyncio.FIRST_COMPLETED)
            if connecting.done() and connecting.exception() is None:
                return client
            error = (
                connecting.exception() if connecting.done() else failing.result() if failing.done() else None
            )
        finally:
            for task in (connecting, failing):
                task.cancel()
        await asyncio.wait({connecting}, timeout=1.0)  # the library may swallow the cancellation
        await client.close()
        raise self._refusal(error)

    async def _open(self, client: Client, failures: asyncio.Queue[Exception]) -> None:
        async def report(error: Exception) -> None:
            _log.debug("bus_error", error=str(error), kind=type(error).__name__)
            if not failures.full():
                failures.put_nowait(error)

        await client.connect(
            self._url.split(","),
            name=self._name,
            max_reconnect_attempts=-1,
            reconnect_time_wait=RECONNECT_PAUSE_S,  # type: ignore[arg-type]  # annotated int, used as seconds
            ping_interval=PING_EVERY_S,
            error_cb=report,
            disconnected_cb=self._on_disconnect,
            reconnected_cb=self._on_reconnected,
            **self._credentials.options(),
        )

    async def _all_servers_failed(self, failures: asyncio.Queue[Exception]) -> Exception:
        """The library tries for ever; the caller of `connect` wants to know after one round."""
        error = await failures.get()
        for _ in range(failures.maxsize - 1):
            error = await failures.get()
        return error

    def _refusal(self, error: BaseException | None) -> TemperError:
        if "Authorization" in str(error):
            return Rejected(f"{self._url} refused our credentials", field="bus.token_file")
        return Unavailable(f"no broker at {self._url}: {error or 'no answer'}")

    async def _keep_alive(self) -> None:
        """Replace the client when the library has given it up: after some errors it closes itself for good."""
        while True:
            await asyncio.sleep(WATCH_EVERY_S)
            client = self._require()
            task = client._reconnection_task  # noqa: SLF001  # no public way to see that reconnecting has ended
            stuck = client.is_reconnecting and task is not None and task.done()
            if not client.is_closed and not stuck:
                continue
            with suppress(TemperError):
                fresh = await self._new_client()
                for subscription in self._subscriptions:
                    await subscription.attach(fresh)
                self._client = fresh
                await self._on_reconnected()

    async def _on_disconnect(self) -> None:
        if not self._up.is_set():
            return
        self._up.clear()
        self.epoch += 1
        if not self._closing:
            _log.warning("bus_disconnected", url=self._url)
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(Unavailable(f"connection to {self._url} was lost"))

    async def _on_reconnected(self) -> None:
        self._up.set()
        _log.info("bus_reconnected", url=self._url)
        for callback in list(self._reconnect_callbacks):
            callback()

    def _require(self) -> LeanClient:
        if self._client is None:
            raise Unavailable("connect() was not called")
        return self._client


def _late(answer: asyncio.Future[RawMessage], subject: str, timeout_s: float) -> None:
    if not answer.done():
        answer.set_exception(Unavailable(f"no answer from {subject} within {timeout_s:g} s"))


class NatsBus(StreamBus):
    """The bus at `url` (`nats://host:port`, comma-separated for a cluster); `name` is `service/instance`."""

    def __init__(
        self,
        url: str,
        *,
        name: str = "temper",
        credentials: Credentials | None = None,
        clock: Clock | None = None,
        topology: Topology | None = None,
    ) -> None:
        link = NatsLink(url, name, credentials or Credentials())
        super().__init__(link, source=name, clock=clock or SystemClock(), topology=topology)
        self._nats = link

    async def connect(self) -> None:
        """Raises Unavailable if there is no broker, Rejected if it does not accept our credentials."""
        await self._nats.connect()

    async def close(self) -> None:
        """Stop fetching, wait for handlers, flush, disconnect."""
        await self.drain()
        await self._nats.close()
