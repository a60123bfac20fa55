"""When snapshots are taken, and their writing off the step path: one at a time for each level, a late one makes the next one wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from temper.runtime.errors import TemperError
from temper.runtime.telemetry import get_logger
from temper.trainer.levels import Level
from temper.trainer.metrics import TrainerMetrics
from temper.trainer.snapshot import Snapshot

Cut = Callable[[], Awaitable[Snapshot]]
Alarm = Callable[[str, str], Awaitable[None]]
"""Says what is wrong, once for each key: ``await alarm(key, message)``."""


@dataclass(slots=True)
class _Shelf:
    level: Level
    unsaved: int = 0
    saving: asyncio.Task[None] | None = None

    def due(self, every: int) -> bool:
        return self.unsaved >= (self.level.every or every)

    @property
    def busy(self) -> bool:
        return self.saving is not None and not self.saving.done()


class Keeper:
    """Counts steps since the last snapshot of each level and writes the next one in the background."""

    def __init__(self, places: Sequence[Level], metrics: TrainerMetrics, alarm: Alarm) -> None:
        self._shelves = [_Shelf(level) for level in places]
        self._metrics = metrics
        self._alarm = alarm
        self._log = get_logger()

    def after_step(self, every: int) -> bool:
        """Count a step. Whether a level wants a snapshot of it: then ``keep`` must follow."""
        for shelf in self._shelves:
            shelf.unsaved += 1
        return bool(self._wanting(every))

    def keep(self, snapshot: Snapshot, every: int) -> None:
        """Write a cut in the background, to the levels that want it."""
        for shelf in self._wanting(every):
            shelf.unsaved = 0
            shelf.saving = asyncio.create_task(self._save(shelf.level, snapshot))

    def _wanting(self, every: int) -> list[_Shelf]:
        return [shelf for shelf in self._shelves if shelf.due(every) and not shelf.busy]

    async def settle(self, cut: Cut) -> None:
        """Everything up to the last step is written when this returns, or the log says why not."""
        await self.idle()
        behind = [shelf for shelf in self._shelves if shelf.unsaved]
        if behind:
            snapshot = await cut()
            for shelf in behind:
                shelf.unsaved = 0
                await self._save(shelf.level, snapshot)

    async def idle(self) -> None:
        """Wait for the writes in flight."""
        if tasks := self._tasks():
            await asyncio.wait(tasks)

    async def close(self) -> None:
        """Give up writes in flight: a snapshot without manifest does not exist."""
        for task in self._tasks():
            task.cancel()
        await self.idle()

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [shelf.saving for shelf in self._shelves if shelf.saving is not None]

    async def _save(self, level: Level, snapshot: Snapshot) -> None:
        """A snapshot that cannot be written costs recovery time, not the job."""
        try:
            await level.snapshots.save(snapshot)
        except TemperError as error:
            self._metrics.snapshots.labels(level.name, "failed").inc()
            self._log.error("trainer.snapshot_failed", place=level.name, step=snapshot.step, error=str(error))
            await self._alarm(
                f"{level.name}/{type(error).__name__}",
                f"snapshot of step {snapshot.step} ({level.name}) not written: {error}; older ones are kept",
            )
        else:
            self._metrics.snapshots.labels(level.name, "saved").inc()
