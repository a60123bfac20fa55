"""Going back and branching off: snapshots, restore, rollback and forks of sessions, tied to the steps of a trajectory."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from temper.runtime.clock import Clock
from temper.runtime.errors import Rejected, TemperError
from temper.sandbox.engine.base import Fork
from temper.sandbox.host import SandboxHost
from temper.sandbox.phases import Verdict
from temper.sandbox.tenancy import Tenancy
from temper.sandbox.timeline import Moment


@dataclass(frozen=True, slots=True)
class Forked:
    """One outcome of a fork. Example: `Forked("s/1", 7)`, or `Forked("s/2", 0, "all 8 sandboxes are taken")`."""

    name: str
    """Session."""
    epoch: int
    """Of its lease; 0 if there is none."""
    error: str = ""
    """Why there is none."""


class Branches:
    """See the module. `lease_s` is the lease of a fork whose caller names none."""

    def __init__(self, host: SandboxHost, clock: Clock, lease_s: float) -> None:
        self._host = host
        self._clock = clock
        self._lease_s = lease_s

    async def snapshot(self, name: str, step: int) -> str:
        """Keep the files of a session after a step of its trajectory. Raises Stale, Exhausted, Rejected."""
        tenant = self._host.tenant(name)
        tenant.desk.timeline.check_room()
        commands = self._host.sessions.commands(name)
        snapshot = await tenant.sandbox.snapshot()
        await self._drop(tenant.desk.timeline.add(Moment(step, snapshot, commands)))
        return snapshot

    async def _drop(self, snapshots: list[str]) -> None:
        for snapshot in snapshots:
            await self._host.backend.forget(snapshot)

    async def restore(self, name: str, snapshot: str) -> None:
        """Put files back; programs end. Raises Stale, Rejected, Unavailable."""
        tenant = self._host.tenant(name)
        moment = tenant.desk.timeline.find(snapshot)
        tenant.desk.clear()
        await tenant.sandbox.restore(moment.snapshot)

    async def rollback(self, name: str, step: int) -> tuple[Moment, int]:
        """Go back to the last snapshot at or before a step, as if no later command had come; how many are forgotten.

        Raises Stale, Rejected, Conflict while a command runs.
        """
        tenant = self._host.tenant(name)
        moment = tenant.desk.timeline.at(step)
        forgotten = self._host.sessions.rewind(name, moment.commands)
        await self.restore(name, moment.snapshot)
        await self._drop(tenant.desk.timeline.forget_after(moment.step))
        return moment, forgotten

    async def fork(self, name: str, snapshot: str, names: Sequence[str], lease_s: float) -> list[Forked]:
        """New sessions with the files of a snapshot of session `name`, each with its outcome. Raises Stale, Rejected.

        A repeat finds the forks that it made before; a session of that name that is none of them is told as an error.
        """
        if len({name, *names}) <= len(names):
            hint = "name each fork once, and none as the session it is forked from"
            raise Rejected("the names are not different", field="fork_session_ids", hint=hint)
        tenant = self._host.tenant(name)
        moment = tenant.desk.timeline.find(snapshot)
        made: dict[str, Forked] = {}
        wanted: list[tuple[str, int]] = []
        for each in names:
            try:
                decision = self._host.sessions.begin(
                    each, now=self._clock.monotonic(), lease_s=lease_s or self._lease_s
                )
            except TemperError as error:
                made[each] = Forked(each, 0, error.message)
                continue
            made[each] = Forked(each, decision.epoch)
            if decision.verdict is Verdict.USE and self._host.tenant(each).origin != moment.snapshot:
                made[each] = Forked(each, 0, "a session of this name lives already, and is no fork of this")
            if decision.verdict is not Verdict.CREATE:
                continue
            try:
                self._host.promise(each, tenant.limits)
            except TemperError as error:
                self._host.failed(each, decision.epoch)
                made[each] = Forked(each, 0, error.message)
            else:
                wanted.append((each, decision.epoch))
        if wanted:
            made |= await asyncio.shield(asyncio.create_task(self._fork(tenant, moment.snapshot, wanted)))
        return [made[each] for each in names]

    async def _fork(self, tenant: Tenancy, snapshot: str, wanted: list[tuple[str, int]]) -> dict[str, Forked]:
        try:
            forks = await self._host.backend.fork(snapshot, [name for name, _ in wanted], tenant.limits)
        except BaseException:  # whatever it was, their places must not stay taken
            for name, epoch in wanted:
                self._host.failed(name, epoch)
            raise
        return {
            fork.name: await self._moved_in(tenant, fork, epoch, snapshot)
            for fork, (_, epoch) in zip(forks, wanted, strict=True)
        }

    async def _moved_in(self, tenant: Tenancy, fork: Fork, epoch: int, snapshot: str) -> Forked:
        if fork.sandbox is None:
            self._host.failed(fork.name, epoch)
            return Forked(fork.name, 0, fork.error)
        try:
            sandbox = await self._host.connect(fork.name, fork.sandbox, tenant.purpose)
        except TemperError as error:
            self._host.failed(fork.name, epoch)
            return Forked(fork.name, 0, error.message)
        if not self._host.sessions.created(fork.name, epoch):
            await self._host.disconnect(fork.name)
            await fork.sandbox.destroy()
            return Forked(fork.name, 0, "its session ended while it was being made")
        self._host.settle(fork.name, sandbox, tenant.limits, tenant.purpose, 0.0, origin=snapshot)
        return Forked(fork.name, epoch)
