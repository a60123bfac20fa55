"""Commands of one job: the same command twice is one command, by its id."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from temper.api.common.v1.common_pb2 import DropReason, Purpose
from temper.api.job.v1.job_pb2 import GateRecord, Job
from temper.api.rollout.v1.rollout_pb2 import GroupCommand
from temper.api.trainer.v1.trainer_pb2 import StartTraining
from temper.runtime.topology import cmd
from temper.scheduler.letters import drop_record
from temper.scheduler.store import persistently, write_orders
from temper.scheduler.surroundings import Surroundings

_AT_ONCE = 64  # commands in flight to the broker: an acknowledgement costs a round trip


class Publication:
    """Publishes under one fence, for as long as it takes: a full queue is back-pressure, not an error."""

    def __init__(self, around: Surroundings, job_id: str, fence: int) -> None:
        self._around, self._job_id, self._fence = around, job_id, fence

    async def groups(self, commands: Sequence[GroupCommand], *, again: int = 0) -> None:
        """Publish groups in order; `again` > 0 counts the times that lost ones are published anew."""
        for start in range(0, len(commands), _AT_ONCE):
            batch = commands[start : start + _AT_ONCE]
            await asyncio.gather(*(self._group(command, again) for command in batch))

    async def _group(self, command: GroupCommand, again: int) -> None:
        name = f"{command.group_id}~{again}" if again else command.group_id
        await persistently(
            self._around.clock,
            lambda: self._around.bus.command(
                cmd("rollout", self._job_id), command, id=name, fence=self._fence, about=self._job_id
            ),
        )
        self._around.metrics.groups.labels(Purpose.Name(command.purpose)).inc()

    async def revocations(self, commands: Sequence[GroupCommand]) -> None:
        """Settle groups of a withdrawn environment by a record; a worker's later one has the same id, and is no news."""
        for command in commands:
            record = drop_record(command, DropReason.DROP_REASON_REVOKED, self._around.clock.now())
            await persistently(
                self._around.clock,
                lambda record=record: self._around.log.append(
                    "trajectories", self._job_id, record, id=record.group_id
                ),
            )

    async def orders(self, record: GateRecord) -> None:
        """Write what the gates want of the trainer. Stale if a newer activation has written."""
        kv = await persistently(self._around.clock, self._around.store.kv)
        await persistently(self._around.clock, lambda: write_orders(kv, record))

    async def training(self, job: Job) -> None:
        """Ask a trainer to train the job."""
        command = StartTraining(job_id=job.id, spec=job.spec, fence=self._fence)
        await persistently(
            self._around.clock,
            lambda: self._around.bus.command(
                cmd("trainer", job.id), command, id=f"{job.id}-train", fence=self._fence, about=job.id
            ),
        )
