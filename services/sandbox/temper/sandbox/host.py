"""Sessions on this host: the state machine's hands. Admission, creation, commands, leases, the end, the record.

    caller -> SandboxHost -> Sessions (decides) -> Backend or WarmPool (does) -> Sessions (is told)

A command runs in a task of its own: a caller that hangs up does not kill it, and a repeat of the same command id waits
for the same task or gets its kept result.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from google.protobuf.message import Message

from temper.api.sandbox.v1 import egress_pb2, sandbox_pb2
from temper.runtime.clock import Clock
from temper.runtime.errors import Exhausted, Rejected, Stale, TemperError, Unavailable
from temper.sandbox.desk import Desk
from temper.sandbox.egress.desk import EgressDesk, Guest, bare
from temper.sandbox.egress.policy import Mode, Policy
from temper.sandbox.engine.base import Backend, CommandResult, Limits, Sandbox
from temper.sandbox.metrics import Metrics
from temper.sandbox.phases import ANYONE, Asker, Decision, End, Session, Verdict
from temper.sandbox.pool import WarmPool
from temper.sandbox.promises import Promises, of_this_machine
from temper.sandbox.state import Sessions
from temper.sandbox.tenancy import Purpose, Settings, Tenancy, stamp
from temper.sandbox.turns import Turns

Reply = CommandResult | Message
R = TypeVar("R", bound=Reply)
Work = Callable[[Sandbox], Awaitable[R]]
Publish = Callable[[sandbox_pb2.SessionRecord], None]


class SandboxHost:
    """See the module. `name` is this host's subject token; `publish` takes the record of each finished session."""

    def __init__(
        self,
        name: str,
        backend: Backend,
        pool: WarmPool,
        settings: Settings,
        *,
        clock: Clock,
        metrics: Metrics,
        publish: Publish,
        egress: EgressDesk | None = None,
    ) -> None:
        self.name = name
        self.egress = egress
        self.backend = backend
        self.sessions: Sessions[Reply] = Sessions(capacity=settings.slots)
        self._pool = pool
        self._settings = settings
        self._clock = clock
        self._metrics = metrics
        self._publish = publish
        self._tenants: dict[str, Tenancy] = {}
        self._creating: dict[str, asyncio.Task[None]] = {}
        self._commands: dict[tuple[str, str], asyncio.Task[Any]] = {}
        self._promises = Promises(of_this_machine())
        self._places = Turns(clock)
        self._slots = Turns(clock)

    async def acquire(
        self, name: str, limits: Limits, lease_s: float, purpose: Purpose, asker: Asker = ANYONE
    ) -> int:
        """Have a live session of this name; returns its epoch. Raises Stale, Exhausted, Unavailable.

        A sandbox that is ready only after every asker has stopped waiting is given back at once.
        """
        decision = await self._admit(name, lease_s or self._settings.lease_s, asker)
        if decision.verdict is Verdict.CREATE:
            task = asyncio.create_task(self._create(name, decision.epoch, limits, purpose))
            self._creating[name] = task
            task.add_done_callback(lambda done: self._created(name, done))
        task = self._creating.get(name)
        if task is not None:
            await asyncio.shield(task)
        if decision.verdict is not Verdict.CREATE:
            self._require_same(name, purpose)
        return decision.epoch

    def _require_same(self, name: str, purpose: Purpose) -> None:
        """Refuse who wants a network of a session that was begun without one and cannot get it any more."""
        has = self.tenant(name).purpose.egress.mode
        if has is Mode.NONE and purpose.egress.mode is not Mode.NONE:
            hint = "ask under another name"
            raise Rejected(f"session {name!r} lives already, without a network", field="egress", hint=hint)

    def asker(self, request: str, deadline: float | None) -> Asker:
        """Who sent a request that is not wanted after `deadline` (unix seconds)."""
        if deadline is None:
            return Asker(request)
        return Asker(request, self._clock.monotonic() + deadline - self._clock.now())

    async def withdraw(self, name: str, request: str) -> bool:
        """Take a request for a session back; True if a sandbox was destroyed, since nobody else had asked for it."""
        return self.sessions.withdraw(name, request) and await self.end(name, End.ABANDONED)

    async def _admit(self, name: str, lease_s: float, asker: Asker) -> Decision[Reply]:
        """Ask the machine, waiting for a slot within bounds."""
        until, woken = self._clock.monotonic() + self._settings.admission_wait_s, False
        while True:
            try:
                now = self._clock.monotonic()
                decision = self.sessions.begin(name, now=now, lease_s=lease_s, asker=asker)
            except Exhausted:
                if self.sessions.draining or not await self._places.wait(until, again=woken):
                    raise
                woken = True
                continue
            except TemperError:
                self._pass_on(woken)
                raise
            self._pass_on(woken and decision.verdict is not Verdict.CREATE)
            return decision

    def _pass_on(self, unused: bool) -> None:
        """Who was woken for a place and has not taken it leaves it to the next one."""
        if unused:
            self._places.free()

    def policy(self, asked: egress_pb2.EgressPolicy) -> Policy:
        """What a session may reach, from the wire. Raises Rejected for what this host does not give."""
        if asked.mode in {"", Mode.NONE.value}:
            return Policy()
        if self.egress is None:
            raise Rejected("this host gives no network by name", field="egress.mode")
        return self.egress.read(asked)

    async def _make(self, name: str, limits: Limits, network: str) -> Sandbox:
        """A session's place is free from its end on, its sandbox's only once that is destroyed: wait for it here."""
        until, again = self._clock.monotonic() + self._settings.admission_wait_s, False
        while True:
            try:
                return await self.backend.create(name, limits, network)
            except Exhausted:
                if not await self._slots.wait(until, again=again):
                    raise
            again = True

    async def _create(self, name: str, epoch: int, limits: Limits, purpose: Purpose) -> None:
        started = self._clock.monotonic()
        sandbox: Sandbox | None = None
        try:
            self.promise(name, limits)
            self._require_network(purpose)
            sandbox = self._pool.take(limits) if purpose.egress.mode is Mode.NONE else None
            pooled = sandbox is not None
            sandbox = sandbox or await self._make(name, limits, _network(purpose))
            sandbox = await self.connect(name, sandbox, purpose)
        except BaseException:  # whatever it was, the place must not stay taken
            self.failed(name, epoch)
            raise
        took = self._clock.monotonic() - started
        if self.sessions.unwanted(name, epoch, now=self._clock.monotonic()):
            await self.end(name, End.ABANDONED)
        if not self.sessions.created(name, epoch):  # it ended while its sandbox was being made
            await self.disconnect(name)
            await bare(sandbox).destroy()
            self._slots.free()
            raise Stale(f"session {name!r} ended while it was being made", field="session_id")
        self._metrics.created.observe(took)
        self.settle(name, sandbox, limits, purpose, 0.0 if pooled else took)

    def _require_network(self, purpose: Purpose) -> None:
        """Refuse, before anything is made, a network that this host cannot give."""
        mode = purpose.egress.mode.value
        has = self.backend.capabilities.network_modes
        if purpose.egress.mode is not Mode.NONE and (self.egress is None or mode not in has):
            raise Rejected(
                f"this host gives no network {mode!r}", field="egress", hint=f"it has: {', '.join(has)}"
            )

    def promise(self, name: str, limits: Limits) -> None:
        """Keep what a new session is guaranteed, until it ends or has failed. Raises Exhausted, Rejected."""
        self._promises.give(name, limits.guarantee)

    async def connect(self, name: str, sandbox: Sandbox, purpose: Purpose) -> Sandbox:
        """Give a new sandbox the network of its session; one that cannot have it is destroyed. Raises TemperError."""
        if self.egress is None:
            return sandbox
        guest = Guest(name, purpose.job_id, lambda: self.sessions.begun(name))
        try:
            return await self.egress.attach(guest, sandbox, purpose.egress)
        except BaseException:
            await sandbox.destroy()
            raise

    def failed(self, name: str, epoch: int) -> None:
        """No sandbox came to be for this session."""
        self._promises.release(name)
        self.sessions.failed(name, epoch)
        self._places.free()
        self._slots.free()

    def settle(
        self, name: str, sandbox: Sandbox, limits: Limits, purpose: Purpose, took: float, *, origin: str = ""
    ) -> None:
        """Give a session its sandbox for good; `took` seconds went into making it, a fork's from `origin`."""
        desk = Desk(self._clock)
        self._tenants[name] = Tenancy(sandbox, limits, purpose, desk, self._clock.now(), took, origin=origin)
        self._metrics.sessions.set(len(self.sessions))

    def _created(self, name: str, task: asyncio.Task[None]) -> None:
        if self._creating.get(name) is task:
            del self._creating[name]
        if not task.cancelled():
            task.exception()  # every waiter raises it itself; a creation nobody waits for is counted by the machine

    async def run(self, name: str, command_id: str, work: Work[R]) -> R:
        """Run `work` in a live session once per command id; a repeat gets its reply. Raises Stale, Unavailable."""
        running = self._commands.get((name, command_id))
        if running is None:
            decision = self.sessions.start(name, command_id, now=self._clock.monotonic())
            if decision.verdict is Verdict.CACHED:
                return cast("R", decision.result)
            running = asyncio.create_task(self._command(name, decision.epoch, command_id, work))
            self._commands[name, command_id] = running
            running.add_done_callback(lambda _: self._commands.pop((name, command_id), None))
        return await asyncio.shield(running)

    async def _command(self, name: str, epoch: int, command_id: str, work: Work[R]) -> R:
        tenant = self._tenants[name]
        try:
            result = await work(tenant.sandbox)
        except BaseException:
            self.sessions.complete(name, epoch, command_id, None, now=self._clock.monotonic())
            raise
        self.sessions.complete(name, epoch, command_id, result, now=self._clock.monotonic())
        if isinstance(result, CommandResult):
            tenant.saw(result)
            self._metrics.saw(result)
        return result

    def expect(self, limits: Limits, tasks: int) -> None:
        """So many tasks with these limits will be played soon."""
        self._pool.expect(limits, tasks)

    def sandbox(self, name: str) -> Sandbox:
        """The sandbox of a live session, for files. Raises Stale."""
        return self.tenant(name).sandbox

    def desk(self, name: str) -> Desk:
        """What is open in a live session. Raises Stale."""
        return self.tenant(name).desk

    def tenant(self, name: str) -> Tenancy:
        """A live session. Raises Stale."""
        self.sessions.require(name)
        tenant = self._tenants[name]
        self.sessions.touch(name, now=self._clock.monotonic())
        return tenant

    async def end(self, name: str, how: End, reply: Reply | None = None) -> bool:
        """End a session and destroy its sandbox; True if there was one. A tombstone keeps `reply`."""
        session = self.sessions.end(name, how, reply)
        tenant = self._tenants.pop(name, None)
        if session is None:
            return False
        self._places.free()
        self._metrics.sessions.set(len(self.sessions))
        self._metrics.ended.labels(how.value).inc()
        self._promises.release(name)
        if tenant is not None:
            tenant.desk.clear()
            await self.disconnect(name)
            tenant.sandbox = bare(tenant.sandbox)
            await self._pool.retire(tenant.sandbox, tenant.limits)
            for snapshot in tenant.desk.timeline.clear():
                await self.backend.forget(snapshot)
            self._slots.free()
            self._publish(self._record(session, tenant, how))
        return tenant is not None

    async def disconnect(self, name: str) -> None:
        """Close a session's way out, if it has one."""
        if self.egress is not None:
            await self.egress.detach(name)

    def _record(self, session: Session[Reply], tenant: Tenancy, how: End) -> sandbox_pb2.SessionRecord:
        return sandbox_pb2.SessionRecord(
            session_id=session.name,
            job_id=tenant.purpose.job_id,
            host=self.name,
            backend=self.backend.capabilities.backend,
            env=tenant.purpose.env,
            acquired_at=stamp(tenant.acquired_at),
            released_at=stamp(self._clock.now()),
            commands=session.commands,
            cpu_s=tenant.cpu_s,
            peak_memory_bytes=tenant.peak,
            limit_hits=tenant.hits,
            end=how.value,
            create_s=tenant.create_s,
            slowest_s=tenant.slowest_s,
        )

    def renew(self, name: str, epoch: int, lease_s: float) -> None:
        """Set a lease anew. Raises Stale, Rejected."""
        self.sessions.renew(name, epoch, now=self._clock.monotonic(), lease_s=lease_s)

    def listing(self) -> list[sandbox_pb2.Session]:
        """Live sessions, oldest first."""
        offset = self._clock.now() - self._clock.monotonic()
        return [
            sandbox_pb2.Session(
                session_id=session.name,
                job_id=tenant.purpose.job_id if (tenant := self._tenants.get(session.name)) else "",
                acquired_at=stamp(session.acquired_at + offset),
                lease_until=stamp(session.expires_at + offset),
                commands=session.commands,
            )
            for session in sorted(self.sessions, key=lambda each: each.epoch)
        ]

    def status(self) -> dict[str, object]:
        """For presence."""
        self._metrics.warm.set(len(self._pool))
        return {
            "slots": self._settings.slots,
            "in_use": len(self.sessions),
            "warm": len(self._pool),
            "backend": self.backend.capabilities.backend,
            "isolation": self.backend.capabilities.isolation.name.lower(),
        }

    async def reap(self) -> None:
        """End sessions whose lease is over, for ever."""
        while True:
            await self._clock.sleep(self._settings.reap_every_s)
            for name in self.sessions.overdue(self._clock.monotonic()):
                await self.end(name, End.REAPED)

    async def drain(self) -> None:
        """Take no new session, give running commands their time, then end every session."""
        self.sessions.drain()
        self._places.all()
        running: list[asyncio.Task[Any]] = [*self._commands.values(), *self._creating.values()]
        with contextlib.suppress(TimeoutError):
            async with self._clock.timeout(self._settings.drain_s):
                await asyncio.gather(*(asyncio.shield(task) for task in running), return_exceptions=True)
        for session in self.sessions:
            with contextlib.suppress(Unavailable):
                await self.end(session.name, End.DRAINED)
        await self._pool.close()


def _network(purpose: Purpose) -> str:
    """As a backend takes it: empty is its own default."""
    return "" if purpose.egress.mode is Mode.NONE else purpose.egress.mode.value
