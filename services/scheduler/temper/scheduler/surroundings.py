"""What a job actor and the API may touch outside themselves, and who is there to be touched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from temper.api.job.v1.platform_pb2 import Presence
from temper.runtime.bus.base import Bus
from temper.runtime.clock import Clock
from temper.runtime.log.base import EventLog
from temper.scheduler.announcements import Announcer
from temper.scheduler.config import SchedulerConfig
from temper.scheduler.metrics import Metrics
from temper.scheduler.store import JobStore


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Connections and settings of one scheduler process."""

    bus: Bus
    """Commands, events, requests, last values."""
    log: EventLog
    """Topics `trajectories` and `jobs`."""
    clock: Clock
    """Time."""
    config: SchedulerConfig
    """Settings."""
    metrics: Metrics
    """Series of this process."""
    store: JobStore
    """KV `jobs`."""
    announcer: Announcer
    """Events of jobs."""


async def presences(bus: Bus) -> Sequence[Presence]:
    """Live instances of all services."""
    bucket = await bus.kv("presence")
    entries = [await bucket.get(key) for key in await bucket.keys()]
    return [Presence.FromString(entry.value) for entry in entries if entry is not None]
