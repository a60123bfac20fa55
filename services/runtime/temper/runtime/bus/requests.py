"""Request and reply over a `Link`: the path on which per-message overhead counts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Generic, TypeVar

import structlog
from google.protobuf.message import DecodeError, Message
from google.rpc import status_pb2

from temper.runtime.bus.link import Link, RawMessage, RawSubscription
from temper.runtime.clock import Clock
from temper.runtime.envelope import Envelope, decode, parse
from temper.runtime.errors import Exhausted, Rejected, TemperError, Unavailable, from_wire, to_status
from temper.runtime.tracing import span

M = TypeVar("M", bound=Message)
Req = TypeVar("Req", bound=Message)

ERROR = (
    "temper-error"  # header of a reply whose body is a google.rpc.Status; its value is the class, for readers
)
DRAIN_S = 10.0  # how long stopping waits for requests in flight

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


async def ask(
    link: Link, subject: str, msg: Message, headers: dict[str, str], reply_type: type[M], timeout_s: float
) -> M:
    """Send a request and wait for its reply; raises what the handler raised."""
    raw = await link.ask(subject, msg.SerializeToString(), timeout_s=timeout_s, headers=headers)
    if raw.headers and ERROR in raw.headers:
        raise from_wire(status_pb2.Status.FromString(raw.data))
    try:
        return reply_type.FromString(raw.data)
    except DecodeError as broken:
        raise Rejected(f"reply from {subject} is not a {reply_type.DESCRIPTOR.full_name}: {broken}") from None


class Endpoint(Generic[Req]):
    """Answers requests on one subject, several at a time."""

    def __init__(
        self,
        link: Link,
        clock: Clock,
        request_type: type[Req],
        handler: Callable[[Req, Envelope], Awaitable[Message]],
        concurrency: int,
    ) -> None:
        self._link, self._clock = link, clock
        self._request_type, self._handler, self._concurrency = request_type, handler, concurrency
        self._running: dict[asyncio.Task[None], RawMessage] = {}
        self._subscription: RawSubscription | None = None

    async def start(self, subject: str, queue: str) -> None:
        """Take requests from now on."""
        self._subscription = await self._link.subscribe(subject, self._on_request, queue=queue)

    async def stop(self) -> None:
        """Take no new request, wait for those in flight."""
        if self._subscription is not None:
            await self._subscription.stop(drain=True)
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=DRAIN_S)
            for task in late:
                task.cancel()

    async def _on_request(self, raw: RawMessage) -> None:
        if len(self._running) >= self._concurrency:
            await self._refuse(raw, Exhausted(f"{self._concurrency} requests are in flight already"))
            return
        task = asyncio.get_running_loop().create_task(self._answer(raw))
        self._running[task] = raw
        task.add_done_callback(self._finished)

    async def _answer(self, raw: RawMessage) -> None:
        try:
            envelope = decode(raw.headers)
            request = parse(envelope, raw.data, self._request_type)
            left = None if envelope.deadline is None else envelope.deadline - self._clock.now()
            if left is not None and left <= 0:
                return  # the caller has given up; an answer would find nobody
            with span(envelope.type, traceparent=envelope.traceparent, kind="server"):
                async with self._clock.timeout(left):
                    reply = await self._handler(request, envelope)
            await self._link.publish(raw.reply, reply.SerializeToString())
        except TimeoutError:
            await self._refuse(raw, Unavailable("the deadline passed while the request was served"))
        except TemperError as error:
            await self._refuse(raw, error)

    async def _refuse(self, raw: RawMessage, error: TemperError) -> None:
        with suppress(Unavailable):  # we are cut off from the caller, who sees that from its own side
            headers = {ERROR: type(error).__name__}
            await self._link.publish(raw.reply, to_status(error).SerializeToString(), headers=headers)

    def _finished(self, task: asyncio.Task[None]) -> None:
        raw = self._running.pop(task)
        if task.cancelled():
            failure: TemperError = Unavailable("the request was cancelled: its host is stopping")
        elif (bug := task.exception()) is not None:
            _log.error("handler_failed", subject=raw.subject, exc_info=bug)
            failure = Unavailable(f"the handler failed: {type(bug).__name__}")
        else:
            return
        refusal = asyncio.get_running_loop().create_task(self._refuse(raw, failure))
        self._running[refusal] = raw
        refusal.add_done_callback(self._running.pop)
