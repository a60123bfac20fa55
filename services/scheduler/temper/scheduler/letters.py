"""Dead letters of one job: a group that nobody can run is settled by a record, like any other.

Commands get there in two ways: delivered too often (`Undertaker` moves them), or refused by a worker for good. Either
way the job's own actor appends the record with DROP_REASON_POISON, so there is one path of settlement.
"""

from __future__ import annotations

from temper.api.common.v1.common_pb2 import DropReason
from temper.api.rollout.v1.rollout_pb2 import GroupCommand, GroupRecord
from temper.runtime.bus.base import DeadLetter
from temper.runtime.errors import Rejected
from temper.runtime.topology import cmd
from temper.scheduler.facts import JobFacts
from temper.scheduler.groups import timestamp
from temper.scheduler.signals import Announce, TrainerLost
from temper.scheduler.state import notice
from temper.scheduler.surroundings import Surroundings

_PAGE = 200


class Letters:
    """Looks through new dead letters for those of one job."""

    def __init__(self, around: Surroundings, job_id: str) -> None:
        self._around, self._job_id = around, job_id
        self._seen = 0

    async def look(self, facts: JobFacts) -> tuple[list[Announce], TrainerLost | None]:
        """Settle this job's dead groups; returns what to tell, and whether training cannot go on."""
        told: list[Announce] = []
        lost: TrainerLost | None = None
        while letters := await self._around.bus.dead_letters(after=self._seen, limit=_PAGE):
            for letter in letters:
                if letter.subject == cmd("trainer", self._job_id):
                    lost = TrainerLost(letter.reason)
                elif letter.subject == cmd("rollout", self._job_id):
                    told += await self._settle(letter, facts)
                self._seen = letter.seq
        return told, lost

    async def _settle(self, letter: DeadLetter, facts: JobFacts) -> list[Announce]:
        try:
            command = letter.message(GroupCommand)
        except Rejected:
            return []  # not one of ours: no group is waiting for it
        if not facts.awaits(command):
            return []
        record = drop_record(command, DropReason.DROP_REASON_POISON, self._around.clock.now())
        await self._around.log.append("trajectories", self._job_id, record, id=command.group_id)
        text = f"group {command.group_id} of {command.domain} was given up: {letter.reason}"
        return [notice("warning", "group_poisoned", text, key=command.group_id)]


def drop_record(command: GroupCommand, reason: DropReason, now: float) -> GroupRecord:
    """The record of a group that never ran to its end."""
    return GroupRecord(
        job_id=command.job_id,
        group_id=command.group_id,
        index=command.index,
        purpose=command.purpose,
        phase=command.phase,
        domain=command.domain,
        env=command.env,
        split=command.split,
        drop_reason=reason,
        worker="scheduler",
        published_at=command.published_at,
        finished_at=timestamp(now),
        eval_point=command.eval_point,
        seed=command.seed,
        samples_per_task=command.samples_per_task,
    )
