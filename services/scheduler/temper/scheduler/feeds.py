"""What a job's actor listens to: each feed reads one place for ever and posts what it finds.

A post returns when the actor has dealt with it, so nothing queues up behind a slow platform.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import aclosing
from typing import Any

from temper.api.qa.v1.qa_pb2 import EnvironmentRecord, EnvironmentState
from temper.api.rollout.v1.rollout_pb2 import GroupRecord
from temper.api.trainer.v1.trainer_pb2 import PolicyRecord
from temper.runtime.bus.base import Entry
from temper.runtime.log.base import LogRecord, Token
from temper.scheduler.signals import EnvironmentSeen, GroupSeen, PolicySeen
from temper.scheduler.store import persistently, readable
from temper.scheduler.surroundings import Surroundings

TRAJECTORIES, POLICIES, ENVIRONMENTS = "trajectories", "policies", "environments"
_READ_RECORDS, _READ_S = 200, 2.0
_QUARANTINED = EnvironmentState.ENVIRONMENT_STATE_QUARANTINED
_ADMITTED = EnvironmentState.ENVIRONMENT_STATE_ADMITTED


class Feeds:
    """The places of one job."""

    def __init__(self, around: Surroundings, job_id: str, post: Callable[..., Awaitable[None]]) -> None:
        self._around, self._id, self._post = around, job_id, post

    def all(self, token: str) -> Iterator[Coroutine[Any, Any, None]]:
        """Every feed; the log is read behind `token`."""
        yield self.policies()
        yield self.trajectories(token)
        yield self.environments()

    async def policies(self) -> None:
        """KV `policies.<job>`: the last value, then each later one."""
        bucket = await persistently(self._around.clock, lambda: self._around.bus.kv(POLICIES))
        async with aclosing(bucket.watch(self._id)) as changes:
            async for item in changes:
                if not isinstance(item, Entry) or item.key != self._id:
                    continue
                if (seen := readable(PolicyRecord, item)) is not None:
                    await self._post(PolicySeen(seen))

    async def trajectories(self, token: str) -> None:
        """The job's records behind `token`."""
        while True:
            records = await self.read(token)
            if records:
                token = records[-1].token
                await self._post(*(GroupSeen(each.message(GroupRecord), each.token) for each in records))

    async def environments(self) -> None:
        """Quarantines of KV `environments`, and admissions that may lift one."""
        bucket = await persistently(self._around.clock, lambda: self._around.bus.kv(ENVIRONMENTS))
        async with aclosing(bucket.watch()) as changes:
            async for item in changes:
                if not isinstance(item, Entry) or (seen := readable(EnvironmentRecord, item)) is None:
                    continue
                if seen.state == _QUARANTINED:
                    await self._post(EnvironmentSeen(seen.env.digest, withdrawn=True, reason=seen.reason))
                elif seen.state == _ADMITTED:  # only after a new check: between the two nothing is mixed
                    await self._post(EnvironmentSeen(seen.env.digest, withdrawn=False, reason=""))

    async def read(self, token: str) -> list[LogRecord]:
        """Records behind `token` (all of them if empty), or none after a while."""
        after = Token(token) if token else None
        return await persistently(
            self._around.clock,
            lambda: self._around.log.read(
                TRAJECTORIES, key=self._id, after=after, max_records=_READ_RECORDS, timeout_s=_READ_S
            ),
        )
