"""Presence: each instance says every two seconds that it lives, in what state, and how it does.

The value is a `temper.api.job.v1.Presence` in the bucket `presence` under `<service>.<instance>`; the bucket forgets a
key that is not renewed, so an instance that was killed disappears by itself.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

from google.protobuf.timestamp_pb2 import Timestamp

from temper.api.job.v1 import platform_pb2
from temper.runtime.bus.base import Bus, KeyValue
from temper.runtime.clock import Clock
from temper.runtime.errors import Unavailable

BUCKET = "presence"
EVERY_S = 2.0  # a fifth of the bucket's ttl: four beats may be lost
_PATIENCE_S = 1.0  # for one write: a drain must not hang on a broker that is gone

State = Literal["starting", "ready", "draining"]
Status = Callable[[], Mapping[str, object]]


class Presence:
    """What this instance says about itself."""

    def __init__(self, service: str, instance: str, bus: Bus, clock: Clock) -> None:
        self.state: State = "starting"
        self._key = f"{service}.{instance}"
        self._bus = bus
        self._clock = clock
        self._facts: dict[str, str] = {}
        self._status: Status = dict
        self._record = platform_pb2.Presence(
            service=service,
            instance=instance,
            version=installed_version(),
            host=socket.gethostname(),
            pid=os.getpid(),
            started_at=_timestamp(clock.now()),
        )

    def reports(self, status: Status) -> None:
        """Ask `status()` at every beat: slots, in_use, policy versions, engine… It must not block."""
        self._status = status

    def say(self, **facts: object) -> None:
        """Add facts that do not change by themselves, such as addresses."""
        self._facts.update({key: str(value) for key, value in facts.items()})

    def record(self) -> platform_pb2.Presence:
        """The message of this moment."""
        record = platform_pb2.Presence()
        record.CopyFrom(self._record)
        record.state = self.state
        record.seen_at.CopyFrom(_timestamp(self._clock.now()))
        record.status.update(self._facts)
        record.status.update({key: str(value) for key, value in self._status().items()})
        return record

    async def announce(self) -> None:
        """Write it now. A broker that is away is no reason to fail or to wait: the next beat tells."""
        with suppress(Unavailable, TimeoutError):
            async with self._clock.timeout(_PATIENCE_S):
                await (await self._bucket()).put(self._key, self.record().SerializeToString())

    async def beat(self) -> None:
        """Announce for ever."""
        while True:
            await self.announce()
            await self._clock.sleep(EVERY_S)

    async def withdraw(self) -> None:
        """Be gone at once instead of by expiry."""
        with suppress(Unavailable, TimeoutError):
            async with self._clock.timeout(_PATIENCE_S):
                await (await self._bucket()).delete(self._key)

    async def _bucket(self) -> KeyValue:
        return await self._bus.kv(BUCKET)


def installed_version() -> str:
    """Version of the installed distribution; `0` in a checkout that was never installed."""
    try:
        return version("temper-rl")
    except PackageNotFoundError:
        return "0"


def _timestamp(seconds: float) -> Timestamp:
    stamp = Timestamp()
    stamp.FromNanoseconds(int(seconds * 1e9))
    return stamp
