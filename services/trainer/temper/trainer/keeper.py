"""When snapshots are taken, and their writing off the step path: one at a time, a late one makes the next one wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from temper.runtime.errors import TemperError
from temper.runtime.telemetry import get_logger
from temper.trainer.metrics import TrainerMetrics
from temper.trainer.snapshot import Snapshot, Snapshots

Cut = Callable[[], Awaitable[Snapshot]]


class Keeper:
    """Counts steps since the last snapshot and writes the next one in the background."""

    def __init__(self, snapshots: Snapshots, metrics: TrainerMetrics) -> None:
        self._snapshots = snapshots
        self._metrics = metrics
        self._unsaved = 0
        self._saving: asyncio.Task[None] | None = None
        self._log = get_logger()

    async def after_step(self, every: int, cut: Cut) -> None:
        """Take a snapshot if one is due. Only the copy is on the step path."""
        self._unsaved += 1
        busy = self._saving is not None and not self._saving.done()
        if self._unsaved >= every and not busy:
            self._unsaved = 0
            self._saving = asyncio.create_task(self._save(await cut()))

    async def settle(self, cut: Cut) -> None:
        """Everything up to the last step is written when this returns, or the log says why not."""
        await self.idle()
        if self._unsaved:
            self._unsaved = 0
            await self._save(await cut())

    async def idle(self) -> None:
        """Wait for the write in flight."""
        if self._saving is not None:
            await asyncio.wait({self._saving})

    async def close(self) -> None:
        """Give up a write in flight: a snapshot without manifest does not exist."""
        if self._saving is not None:
            self._saving.cancel()
            await asyncio.wait({self._saving})

    async def _save(self, snapshot: Snapshot) -> None:
        """A snapshot that cannot be written costs recovery time, not the job."""
        try:
            await self._snapshots.save(snapshot)
        except TemperError as error:
            self._metrics.snapshots.labels("failed").inc()
            self._log.error("trainer.snapshot_failed", step=snapshot.step, error=str(error))
        else:
            self._metrics.snapshots.labels("saved").inc()
