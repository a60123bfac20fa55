"""What the trainer's parts touch outside themselves, handed on as one value."""

from __future__ import annotations

from dataclasses import dataclass

from temper.runtime.blobs import BlobStore
from temper.runtime.bus.base import Bus
from temper.runtime.clock import Clock
from temper.runtime.log.base import EventLog
from temper.trainer.config import TrainerConfig
from temper.trainer.metrics import TrainerMetrics


@dataclass(frozen=True, slots=True)
class Surroundings:
    """One process's connections, settings and series."""

    config: TrainerConfig
    bus: Bus
    log: EventLog
    blobs: BlobStore
    clock: Clock
    metrics: TrainerMetrics
    instance: str
