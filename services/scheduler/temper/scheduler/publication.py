"""Commands of one job: the same command twice is one command, by its id."""

from __future__ import annotations

from collections.abc import Sequence

from temper.api.common.v1.common_pb2 import Purpose
from temper.api.job.v1.job_pb2 import Job
from temper.api.rollout.v1.rollout_pb2 import GroupCommand
from temper.api.trainer.v1.trainer_pb2 import StartTraining
from temper.runtime.topology import cmd
from temper.scheduler.store import persistently
from temper.scheduler.surroundings import Surroundings


class Publication:
    """Publishes under one fence, for as long as it takes: a full queue is back-pressure, not an error."""

    def __init__(self, around: Surroundings, job_id: str, fence: int) -> None:
        self._around, self._job_id, self._fence = around, job_id, fence

    async def groups(self, commands: Sequence[GroupCommand], *, again: int = 0) -> None:
        """Publish groups in order; `again` > 0 is the how-manieth time that lost ones are published anew."""
        subject = cmd("rollout", self._job_id)
        for command in commands:
            name = f"{command.group_id}~{again}" if again else command.group_id
            await persistently(
                self._around.clock,
                lambda command=command, name=name: self._around.bus.command(
                    subject, command, id=name, fence=self._fence, about=self._job_id
                ),
            )
            self._around.metrics.groups.labels(Purpose.Name(command.purpose)).inc()

    async def training(self, job: Job) -> None:
        """Ask a trainer to train the job."""
        command = StartTraining(job_id=job.id, spec=job.spec, fence=self._fence)
        await persistently(
            self._around.clock,
            lambda: self._around.bus.command(
                cmd("trainer", job.id), command, id=f"{job.id}-train", fence=self._fence, about=job.id
            ),
        )
