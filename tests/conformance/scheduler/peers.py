"""qa, a trainer and rollout workers on a real broker, as scripts that know the contract and nothing of a scheduler."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import suppress
from typing import Any, Self

from tests.unit.scheduler.jobs import ScriptedTrainer, env, record_of

from temper.api.job.v1.job_pb2 import JobLedger
from temper.api.qa.v1.qa_pb2 import ResolveEnvironmentsRequest, ResolveEnvironmentsResponse
from temper.api.rollout.v1.rollout_pb2 import GroupCommand, GroupRecord
from temper.api.trainer.v1.trainer_pb2 import StartTraining
from temper.runtime.bus.base import Delivery
from temper.runtime.bus.nats import NatsBus
from temper.runtime.errors import Rejected
from temper.runtime.log.base import EventLog
from temper.runtime.topology import rpc


class Peers:
    """Everybody but the scheduler. `rolling` cleared: groups are taken and not played."""

    def __init__(self, bus: NatsBus, log: EventLog) -> None:
        self.bus, self.log = bus, log
        self.rolling = asyncio.Event()
        self.rolling.set()
        self.refused: set[int] = set()  # indexes that no worker can play
        self.trainers: dict[str, ScriptedTrainer] = {}
        self.commands: dict[str, GroupCommand] = {}  # by group id, as they came first
        self.changed: list[str] = []  # groups whose second command was another one
        self.most_in_flight = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        await self.bus.serve(rpc("qa", "ResolveEnvironments"), ResolveEnvironmentsRequest, _resolve)
        self._tasks = [asyncio.create_task(each) for each in (self._train(), self._roll())]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    # ------------------------------------------------------------ trainer
    async def _train(self) -> None:
        async for delivery in self.bus.commands("trainer", concurrency=4):
            command = delivery.message(StartTraining)
            if command.job_id not in self.trainers:
                self.trainers[command.job_id] = ScriptedTrainer(list(command.spec.phases), command.job_id)
                await self._publish(command.job_id)
                self._tasks.append(asyncio.create_task(self._read(command.job_id)))
            await delivery.ack()

    async def _read(self, job_id: str) -> None:
        trainer, token = self.trainers[job_id], None
        while True:
            for entry in await self.log.read("trajectories", key=job_id, after=token, timeout_s=1.0):
                token = entry.token
                trainer.offer(entry.message(GroupRecord))
                while trainer.step():
                    await self._publish(job_id)

    async def _publish(self, job_id: str) -> None:
        bucket = await self.bus.kv("policies")
        await bucket.put(job_id, self.trainers[job_id].published().SerializeToString())

    def settled(self, job_id: str) -> set[int]:
        """Indexes that the last publication names."""
        record = self.trainers[job_id].record
        return {index for span in record.settled for index in range(span.first, span.last + 1)}

    # ------------------------------------------------------------ rollout
    async def _roll(self) -> None:
        async for delivery in self.bus.commands("rollout", concurrency=64):
            command = delivery.message(GroupCommand)
            self._note(command)
            self._tasks.append(asyncio.create_task(self._play(command, delivery)))

    async def _play(self, command: GroupCommand, delivery: Delivery) -> None:
        while not self.rolling.is_set():
            await delivery.in_progress()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.rolling.wait(), 1.0)
        if command.index in self.refused and not command.eval_point:
            await delivery.term("nobody can play this")
            return
        record = record_of(command, solved=command.index % 2 == 0)
        await self.log.append("trajectories", command.job_id, record, id=command.group_id)
        await delivery.ack()

    def _note(self, command: GroupCommand) -> None:
        first = self.commands.setdefault(command.group_id, command)
        if what(command) != what(first):
            self.changed.append(command.group_id)
        trained = [each for each in self.commands.values() if not each.eval_point]
        if command.job_id in self.trainers and not command.eval_point:
            published = 1 + max(each.index for each in trained if each.job_id == command.job_id)
            flying = published - len(self.settled(command.job_id))
            self.most_in_flight = max(self.most_in_flight, flying)

    def indexes(self, job_id: str) -> list[int]:
        """Of all training groups that were asked for."""
        mine = (each for each in self.commands.values() if each.job_id == job_id and not each.eval_point)
        return sorted(each.index for each in mine)


def what(command: GroupCommand) -> bytes:
    """What a command asks for: all but who says it and when."""
    same = GroupCommand()
    same.CopyFrom(command)
    same.ClearField("published_at")
    same.ClearField("fence")
    return same.SerializeToString(deterministic=True)


async def books(bus: NatsBus, job_id: str) -> JobLedger:
    """The scheduler's own durable ledger of a job."""
    entry = await (await bus.kv("jobs")).get(f"{job_id}.ledger")
    assert entry is not None
    return JobLedger.FromString(entry.value)


async def _resolve(request: ResolveEnvironmentsRequest, _: Any) -> ResolveEnvironmentsResponse:
    envs = [env(wish.name) for wish in request.wishes]
    for each in envs:
        if each.name == "unknown":
            raise Rejected("no environment is named 'unknown'", field="wishes[0].name")
        each.digest = hashlib.sha256(each.name.encode()).hexdigest()
    return ResolveEnvironmentsResponse(envs=envs)
