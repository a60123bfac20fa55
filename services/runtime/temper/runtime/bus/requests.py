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

ERROR = "temper-error"  # header of a reply that is a google.rpc.Status; the value is the class, for readers
SWEEP_S = 0.1  # how late a handler may be cancelled: one timer for all is far cheaper than one for each
DRAIN_S = 10.0  # how long stopping waits for requests in flight

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


def read_reply(raw: RawMessage, reply_type: type[M], subject: str) -> M:
    """The reply in an answer; raises what the handler raised."""
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
        on_stop: Callable[[Endpoint[Req]], object],
    ) -> None:
        self._link, self._clock, self._on_stop = link, clock, on_stop
        self._request_type, self._handler, self._concurrency = request_type, handler, concurrency
        self._running: dict[asyncio.Task[None], RawMessage] = {}
        self._deadlines: dict[asyncio.Task[None], float] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._subscription: RawSubscription | None = None

    async def start(self, subject: str, queue: str) -> None:
        """Take requests from now on."""
        self._subscription = await self._link.subscribe(subject, self._on_request, queue=queue)

    async def stop(self) -> None:
        """Take no new request, wait for those in flight."""
        self._on_stop(self)
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
        try:
            envelope = decode(raw.headers)
            request = parse(envelope, raw.data, self._request_type)
        except Rejected as error:
            await self._refuse(raw, error)
            return
        if envelope.expired(self._clock.now()):
            return  # the caller has given up; an answer would find nobody
        task = asyncio.get_running_loop().create_task(self._answer(raw, request, envelope))
        self._running[task] = raw
        if envelope.deadline is not None:
            self._deadlines[task] = envelope.deadline
            if self._sweep is None:
                self._sweep = asyncio.get_running_loop().call_later(SWEEP_S, self._cancel_late)
        task.add_done_callback(self._finished)

    async def _answer(self, raw: RawMessage, request: Req, envelope: Envelope) -> None:
        try:
            if envelope.traceparent is None:
                reply = await self._handler(request, envelope)
            else:
                with span(envelope.type, traceparent=envelope.traceparent, kind="server"):
                    reply = await self._handler(request, envelope)
            await self._link.publish(raw.reply, reply.SerializeToString())
        except TemperError as error:
            await self._refuse(raw, error)

    def _cancel_late(self) -> None:
        now = self._clock.now()
        for task in [task for task, deadline in self._deadlines.items() if deadline < now]:
            del self._deadlines[task]
            task.cancel("the deadline passed while the request was served")
        waiting = bool(self._deadlines)
        self._sweep = asyncio.get_running_loop().call_later(SWEEP_S, self._cancel_late) if waiting else None

    async def _refuse(self, raw: RawMessage, error: TemperError) -> None:
        with suppress(Unavailable):  # we are cut off from the caller, who sees that from its own side
            headers = {ERROR: type(error).__name__}
            await self._link.publish(raw.reply, to_status(error).SerializeToString(), headers=headers)

    def _finished(self, task: asyncio.Task[None]) -> None:
        raw = self._running.pop(task)
        late = self._deadlines.pop(task, None) is None
        if task.cancelled():
            why = "the deadline passed" if late else "its host is stopping"
            failure: TemperError = Unavailable(f"the request was cancelled: {why}")
        elif (bug := task.exception()) is not None:
            _log.error("handler_failed", subject=raw.subject, exc_info=bug)
            failure = Unavailable(f"the handler failed: {type(bug).__name__}")
        else:
            return
        refusal = asyncio.get_running_loop().create_task(self._refuse(raw, failure))
        self._running[refusal] = raw
        refusal.add_done_callback(self._running.pop)
