"""Actors over the bus: the same `ask`, wherever the actor lives, and one live actor per key.

An actor of service `scheduler` with key `job7` answers `Pause` messages on `temper.v1.rpc.scheduler.job7.Pause`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from google.protobuf.message import Message

from temper.runtime.actor import CAPACITY, Actor, ActorRef, spawn
from temper.runtime.bus.base import Bus, KeyValue, Subscription
from temper.runtime.clock import Clock, SystemClock
from temper.runtime.envelope import Envelope
from temper.runtime.lease import Lease
from temper.runtime.supervisor import Supervisor
from temper.runtime.topology import rpc

M = TypeVar("M", bound=Message)

LEASE_TTL_S = 6.0  # an actor whose process died is elsewhere within this and a look


class RemoteRef:
    """The address of an actor somewhere on the bus."""

    def __init__(self, bus: Bus, service: str, *key: str) -> None:
        self._bus, self._service, self._key = bus, service, key
        self._subjects: dict[type[Message], str] = {}

    async def ask(
        self,
        message: Message,
        reply_type: type[M],
        *,
        timeout_s: float,
        fence: int | None = None,
        id: str | None = None,  # noqa: A002  # the envelope's word
    ) -> M:
        """Ask; raises what the handler raised, or Unavailable when the actor lives nowhere or does not answer."""
        kind = type(message)
        subject = self._subjects.get(kind)
        if subject is None:
            subject = self._subjects[kind] = rpc(self._service, *self._key, kind.DESCRIPTOR.name)
        return await self._bus.request(subject, message, reply_type, timeout_s=timeout_s, fence=fence, id=id)


class Exposed:
    """An actor that can be reached over the bus."""

    def __init__(self, ref: ActorRef, subscriptions: list[Subscription]) -> None:
        self.ref = ref
        self._subscriptions = subscriptions

    async def withdraw(self) -> None:
        """Take no more requests; those in flight are answered."""
        for subscription in self._subscriptions:
            await subscription.stop()


class Host:
    """Where actors of one process live."""

    def __init__(
        self, bus: Bus, supervisor: Supervisor, *, leases: KeyValue | None = None, clock: Clock | None = None
    ) -> None:
        self._bus, self._supervisor, self._leases = bus, supervisor, leases
        self._clock = clock or SystemClock()
        # A candidate remembers since when it has seen a record unchanged: that is how it finds out that it expired.
        self._candidacies: dict[str, Lease] = {}

    async def expose(
        self,
        ref: ActorRef,
        kind: type[Actor],
        service: str,
        *key: str,
        queue: str | None = None,
        concurrency: int = CAPACITY,
    ) -> Exposed:
        """Serve every protobuf message type that actors of `kind` handle."""

        def forward(message: Message, envelope: Envelope) -> Awaitable[Message]:
            return ref.post(message, envelope)  # the bus has the deadline

        served = [
            await self._bus.serve(
                rpc(service, *key, each.DESCRIPTOR.name), each, forward, queue=queue, concurrency=concurrency
            )
            for each in kind.message_types()
            if issubclass(each, Message)
        ]
        return Exposed(ref, served)

    async def activate(
        self,
        service: str,
        key: str,
        kind: type[Actor],
        factory: Callable[[int], Actor],
        *,
        ttl_s: float = LEASE_TTL_S,
    ) -> Activation | None:
        """Make the one live actor of `service` for `key`, or return None while it lives elsewhere.

        `factory` gets the fence, to stamp it on every effect.
        """
        assert self._leases is not None, "a host without a lease bucket cannot activate"
        name = f"{service}.{key}"
        lease = self._candidacies.get(name)
        if lease is None:
            lease = Lease(self._leases, name, owner=self._bus.source, ttl_s=ttl_s, clock=self._clock)
            self._candidacies[name] = lease
        fence = await lease.acquire()
        if fence is None:
            return None
        del self._candidacies[name]
        ref = spawn(self._supervisor, name, lambda: factory(fence), clock=self._clock)
        exposed = await self.expose(ref, kind, service, key)
        return Activation(lease, exposed, fence, lambda: self._supervisor.cancel(name))


class Activation:
    """One live actor with its lease; ends by itself when the lease is lost."""

    def __init__(
        self, lease: Lease, exposed: Exposed, fence: int, stop: Callable[[], Awaitable[None]]
    ) -> None:
        self.ref, self.fence = exposed.ref, fence
        self._lease, self._exposed, self._stop = lease, exposed, stop
        self.ended = asyncio.Event()
        """Set when the actor does not live here any more."""
        self._watch = asyncio.create_task(self._until_lost())

    @property
    def live(self) -> bool:
        """Whether the actor may act at this moment."""
        return self._lease.held and not self.ended.is_set()

    async def deactivate(self) -> None:
        """Stop the actor, then release the key."""
        self._watch.cancel()
        with suppress(asyncio.CancelledError):
            await self._watch
        await self._end()
        await self._lease.release()

    async def _until_lost(self) -> None:
        await self._lease.lost.wait()
        await self._end()

    async def _end(self) -> None:
        if self.ended.is_set():
            return
        self.ended.set()
        await self._stop()
        self.ref.close()
        await self._exposed.withdraw()
