"""Actors: one mailbox, private state, one message at a time.

    class Counter(Actor):
        def __init__(self) -> None:
            self.total = 0

        @handles(Add)
        async def add(self, message: Add) -> Total:
            self.total += message.amount
            return Total(value=self.total)

    ref = spawn(supervisor, "counter", Counter)
    total = await ref.ask(Add(amount=2), timeout_s=1.0)

An actor is reached through its reference, never through the object. The mailbox belongs to the reference, so it survives
a restart: the message at fault is answered with an error and dropped, the others wait for the new actor.
`Host` reaches the same actor over the bus, and keeps a key to one live actor in all processes by a lease.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import structlog

from temper.runtime.clock import Clock, SystemClock
from temper.runtime.envelope import Envelope
from temper.runtime.errors import Exhausted, Rejected, TemperError, Unavailable
from temper.runtime.supervisor import Restarts, Supervisor

T = TypeVar("T")
_Method = Callable[[Any, Any], Awaitable[Any]]
F = TypeVar("F", bound=_Method)

CAPACITY = 256  # messages that may wait: more is a sign that the sender should slow down
_MARK = "_temper_handles"

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


def handles(*message_types: type[Any]) -> Callable[[F], F]:
    """Mark a method as the handler of messages of these types (exactly, not of their subclasses)."""

    def mark(method: F) -> F:
        setattr(method, _MARK, message_types)
        return method

    return mark


@dataclass(slots=True, eq=False)
class _Letter:
    message: Any
    reply: asyncio.Future[Any] | None
    envelope: Envelope | None

    def answer(self, result: object) -> None:
        if self.reply is not None and not self.reply.done():
            self.reply.set_result(result)

    def fail(self, error: TemperError) -> None:
        if self.reply is not None and not self.reply.done():
            self.reply.set_exception(error)


class ActorRef:
    """The address of an actor: a bounded mailbox."""

    def __init__(self, name: str, *, capacity: int = CAPACITY, clock: Clock | None = None) -> None:
        self.name = name
        self._clock = clock or SystemClock()
        self._capacity = capacity
        self._mailbox: deque[_Letter] = deque()
        self._idle: asyncio.Future[None] | None = None
        self._closed = False

    def tell(self, message: object, *, envelope: Envelope | None = None) -> None:
        """Put a message in the mailbox; Exhausted when it is full, Unavailable when the actor has stopped."""
        self._post(_Letter(message, None, envelope))

    async def ask(self, message: object, *, timeout_s: float, envelope: Envelope | None = None) -> Any:
        """Tell, and wait for what the handler returns or raises; Unavailable after `timeout_s`."""
        reply = self.post(message, envelope)
        try:
            async with self._clock.timeout(timeout_s):
                return await reply
        except TimeoutError:
            raise Unavailable(f"{self.name} did not answer within {timeout_s:g} s") from None

    def post(self, message: object, envelope: Envelope | None = None) -> asyncio.Future[Any]:
        """Tell, and get the future of the answer; the caller sees to the deadline."""
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._post(_Letter(message, reply, envelope))
        return reply

    def close(self) -> None:
        """Take no more messages; those that wait are answered with Unavailable."""
        self._closed = True
        while self._mailbox:
            self._mailbox.popleft().fail(Unavailable(f"{self.name} has stopped"))

    def _post(self, letter: _Letter) -> None:
        if self._closed:
            raise Unavailable(f"{self.name} has stopped")
        if len(self._mailbox) >= self._capacity:
            raise Exhausted(f"the mailbox of {self.name} is full ({self._capacity})")
        self._mailbox.append(letter)
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    async def next(self) -> _Letter:
        """The next letter; for the one actor that reads this mailbox."""
        while not self._mailbox:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle
        return self._mailbox.popleft()


class Actor:
    """Base of actors. Subclasses keep their state in attributes and mark handlers with `@handles`."""

    _handlers: ClassVar[dict[type[Any], _Method]] = {}
    envelope: Envelope | None = None
    """Of the message being handled, when it came over the bus."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        marked = (method for method in vars(cls).values() if hasattr(method, _MARK))
        own = {kind: method for method in marked for kind in getattr(method, _MARK)}
        cls._handlers = {**cls._handlers, **own}

    @classmethod
    def message_types(cls) -> tuple[type[Any], ...]:
        """What it handles."""
        return tuple(cls._handlers)

    async def on_start(self) -> None:
        """Before the first message; a failure counts as one of the actor."""

    async def on_stop(self) -> None:
        """After the last message, however it ended."""

    async def on_failure(self, error: BaseException) -> None:
        """When a handler failed with something that is no TemperError; the actor then ends and is restarted."""

    async def run(self, ref: ActorRef) -> None:
        """Setup, running, teardown; returns only by failure or cancellation."""
        try:
            await self.on_start()
            await self._guarded(ref)
        finally:
            await self.on_stop()

    async def _guarded(self, ref: ActorRef) -> None:
        running = asyncio.create_task(self._running(ref), name=ref.name)
        try:
            await asyncio.wait({running})
        finally:
            running.cancel()
            await asyncio.wait({running})  # the handler has ended before `on_stop` begins
        failure = running.exception()
        if failure is not None:
            await self.on_failure(failure)
            raise failure

    async def _running(self, ref: ActorRef) -> None:
        while True:
            await self._handle(await ref.next())

    async def _handle(self, letter: _Letter) -> None:
        handler = self._handlers.get(type(letter.message))
        if handler is None:
            letter.fail(Rejected(f"{type(self).__name__} does not handle {type(letter.message).__name__}"))
            return
        self.envelope = letter.envelope
        try:
            letter.answer(await handler(self, letter.message))
        except TemperError as error:
            if letter.reply is None:
                _log.warning("message_refused", actor=type(self).__name__, error=str(error))
            letter.fail(error)
        finally:
            if letter.reply is not None and not letter.reply.done():
                letter.fail(Unavailable(f"{type(self).__name__} failed while it handled the message"))


def spawn(
    supervisor: Supervisor,
    name: str,
    factory: Callable[[], Actor],
    *,
    capacity: int = CAPACITY,
    clock: Clock | None = None,
    restarts: Restarts | None = None,
) -> ActorRef:
    """Run an actor under supervision; `factory` makes a fresh one after each failure."""
    ref = ActorRef(name, capacity=capacity, clock=clock)

    async def life() -> None:
        try:
            await factory().run(ref)
        except asyncio.CancelledError:
            ref.close()  # ended on purpose: nobody will read the mailbox again
            raise

    supervisor.start(name, life, restarts=restarts)
    return ref
