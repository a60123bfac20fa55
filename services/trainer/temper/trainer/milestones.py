"""Training states that a rollback may restore: one at each step that is evaluated, beside the snapshots for recovery.

    snapshots/<job>.milestones/<step>/...        in the object store, in the form of snapshots

Kept are the one of the last accepted evaluation, the one before it, and the newest ones that have no verdict yet. The initial policy
needs none: it is made again as at the start of the job.
"""

from __future__ import annotations

import asyncio

from temper.api.job.v1.spec_pb2 import JobSpec
from temper.runtime.blobs import BlobStore
from temper.runtime.errors import Rejected, TemperError
from temper.runtime.telemetry import get_logger
from temper.trainer.snapshot import Snapshot, Snapshots

ALL = 1 << 30
ACCEPTED, UNJUDGED = 2, 4
"""How many are kept up to the accepted one, and after it."""


class Milestones:
    """Of one job. ``every`` steps there is one; 0: the job never goes back."""

    def __init__(self, blobs: BlobStore, job_id: str, every: int) -> None:
        self._snapshots = Snapshots(blobs, f"{job_id}.milestones", keep=ALL)
        self._every = every
        self._saving: asyncio.Task[None] | None = None

    def due(self, step: int) -> bool:
        """Whether the state after this step may be gone back to."""
        return self._every > 0 and step % self._every == 0

    async def keep(self, snapshot: Snapshot, accepted_step: int) -> None:
        """Write one in the background; waits for the one before."""
        await self.idle()
        self._saving = asyncio.create_task(self._save(snapshot, accepted_step))

    async def _save(self, snapshot: Snapshot, accepted_step: int) -> None:
        """One that cannot be written makes the one before it the state to go back to."""
        try:
            await self._snapshots.save(snapshot)
            steps = await self._snapshots.steps()
            await self._snapshots.remove(superfluous(steps, accepted_step))
        except TemperError as error:
            get_logger().error("trainer.milestone_failed", step=snapshot.step, error=str(error))

    async def at(self, step: int) -> Snapshot | None:
        """The newest one that is whole and not after ``step``; None: go back to the initial policy."""
        await self.idle()
        for each in await self._snapshots.steps():
            if each > step:
                continue
            try:
                return await self._snapshots.load(each)
            except Rejected as error:
                get_logger().error("trainer.milestone_broken", step=each, error=str(error))
        return None

    async def idle(self) -> None:
        """Wait for the write in flight."""
        if self._saving is not None:
            await asyncio.wait({self._saving})

    async def close(self) -> None:
        """Give up a write in flight."""
        if self._saving is not None:
            self._saving.cancel()
            await self.idle()

    async def clear(self) -> None:
        """Forget all of them: the job is over."""
        await self.idle()
        await self._snapshots.clear()


def milestones_every(spec: JobSpec) -> int:
    """Steps between two for a job: those that its evaluations lie apart, if it may ever go back."""
    return spec.eval.every if "rollback" in (spec.gates.action, spec.gates.on_collapse) else 0


def superfluous(steps: list[int], accepted: int) -> list[int]:
    """Which of these no rollback needs."""
    old = sorted(step for step in steps if step <= accepted)
    new = sorted(step for step in steps if step > accepted)
    return old[:-ACCEPTED] + new[:-UNJUDGED]
