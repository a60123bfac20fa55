"""Sessions on this host: the state machine's hands. Admission, creation, commands, leases, the end, the record.

    caller -> SandboxHost -> Sessions (decides) -> Backend or WarmPool (does) -> Sessions (is told)

A command runs in a task of its own: a caller that hangs up does not kill it, and a repeat of the same command id waits
for the same task or gets its kept result.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from temper.api.sandbox.v1 import sandbox_pb2
from temper.runtime.clock import Clock
from temper.runtime.errors import Exhausted, Stale, TemperError, Unavailable
from temper.sandbox.engine.base import Backend, CommandResult, Limits, Outcome, Sandbox
from temper.sandbox.metrics import Metrics
from temper.sandbox.pool import WarmPool
from temper.sandbox.state import End, Session, Sessions, Verdict

Reply = CommandResult | sandbox_pb2.FinishResponse
Work = Callable[[Sandbox], Awaitable[CommandResult]]
Publish = Callable[[sandbox_pb2.SessionRecord], None]


@dataclass(frozen=True, slots=True)
class Settings:
    """What the operator decides. Example: `Settings(slots=64)`."""

    slots: int
    """Most sessions at once."""
    lease_s: float = 300.0
    """Lease where the caller names none."""
    admission_wait_s: float = 10.0
    """Seconds a new session waits for a slot."""
    reap_every_s: float = 1.0
    """Seconds between two looks for overdue leases."""
    drain_s: float = 10.0
    """Seconds that running commands get when the host drains."""


@dataclass(frozen=True, slots=True)
class Purpose:
    """What a session is for; goes into its record. Example: `Purpose("job-7", "calc@1.0.0")`."""

    job_id: str = ""
    """Job."""
    env: str = ""
    """Environment and version."""


@dataclass(slots=True)
class _Tenancy:
    """A live sandbox with what its record will say."""

    sandbox: Sandbox
    purpose: Purpose
    acquired_at: float
    create_s: float
    cpu_s: float = 0.0
    peak: int = 0
    slowest_s: float = 0.0
    hits: dict[str, int] = field(default_factory=dict[str, int])

    def saw(self, result: CommandResult) -> None:
        self.cpu_s += result.evidence.cpu_s
        self.peak = max(self.peak, result.evidence.peak_memory_bytes)
        self.slowest_s = max(self.slowest_s, result.evidence.wall_s)
        if result.outcome is not Outcome.OK:
            self.hits[result.outcome.value] = self.hits.get(result.outcome.value, 0) + 1


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
    ) -> None:
        self.name = name
        self.backend = backend
        self.sessions: Sessions[Reply] = Sessions(capacity=settings.slots)
        self._pool = pool
        self._settings = settings
        self._clock = clock
        self._metrics = metrics
        self._publish = publish
        self._tenants: dict[str, _Tenancy] = {}
        self._creating: dict[str, asyncio.Task[None]] = {}
        self._commands: dict[tuple[str, str], asyncio.Task[CommandResult]] = {}
        self._freed = asyncio.Event()

    async def acquire(self, name: str, limits: Limits, lease_s: float, purpose: Purpose) -> int:
        """Have a live session of this name; returns its epoch. Raises Stale, Exhausted, Unavailable."""
        decision = await self._admit(name, lease_s or self._settings.lease_s)
        if decision.verdict is Verdict.CREATE:
            task = asyncio.create_task(self._create(name, decision.epoch, limits, purpose))
            self._creating[name] = task
            task.add_done_callback(lambda done: self._created(name, done))
        task = self._creating.get(name)
        if task is not None:
            await asyncio.shield(task)
        return decision.epoch

    async def _admit(self, name: str, lease_s: float) -> Any:
        """Ask the machine, waiting for a slot within bounds."""
        until = self._clock.monotonic() + self._settings.admission_wait_s
        while True:
            try:
                return self.sessions.begin(name, now=self._clock.monotonic(), lease_s=lease_s)
            except Exhausted:
                if self.sessions.draining or not await self._something_freed(until):
                    raise

    async def _something_freed(self, until: float) -> bool:
        """Wait for the end of any session; False when the time is up."""
        remaining = until - self._clock.monotonic()
        if remaining <= 0:
            return False
        self._freed.clear()
        with contextlib.suppress(TimeoutError):
            async with self._clock.timeout(remaining):
                await self._freed.wait()
        return True

    async def _make(self, name: str, limits: Limits) -> Sandbox:
        """A session's place is free from its end on, its sandbox's only once that is destroyed: wait for it here."""
        until = self._clock.monotonic() + self._settings.admission_wait_s
        while True:
            try:
                return await self.backend.create(name, limits)
            except Exhausted:
                if not await self._something_freed(until):
                    raise

    async def _create(self, name: str, epoch: int, limits: Limits, purpose: Purpose) -> None:
        started = self._clock.monotonic()
        sandbox = self._pool.take(limits)
        pooled = sandbox is not None
        try:
            sandbox = sandbox or await self._make(name, limits)
        except TemperError:
            self.sessions.failed(name, epoch)
            self._freed.set()
            raise
        took = self._clock.monotonic() - started
        if not self.sessions.created(name, epoch):  # it ended while its sandbox was being made
            await sandbox.destroy()
            raise Stale(f"session {name!r} ended while it was being made", field="session_id")
        self._metrics.created.observe(took)
        self._tenants[name] = _Tenancy(sandbox, purpose, self._clock.now(), 0.0 if pooled else took)
        self._metrics.sessions.set(len(self.sessions))

    def _created(self, name: str, task: asyncio.Task[None]) -> None:
        if self._creating.get(name) is task:
            del self._creating[name]
        if not task.cancelled():
            task.exception()  # every waiter raises it itself; a creation nobody waits for is counted by the machine

    async def run(self, name: str, command_id: str, work: Work) -> CommandResult:
        """Run `work` in a live session once per command id. Raises Stale, Unavailable."""
        running = self._commands.get((name, command_id))
        if running is None:
            decision = self.sessions.start(name, command_id, now=self._clock.monotonic())
            if decision.verdict is Verdict.CACHED:
                assert isinstance(decision.result, CommandResult)
                return decision.result
            running = asyncio.create_task(self._command(name, decision.epoch, command_id, work))
            self._commands[name, command_id] = running
            running.add_done_callback(lambda _: self._commands.pop((name, command_id), None))
        return await asyncio.shield(running)

    async def _command(self, name: str, epoch: int, command_id: str, work: Work) -> CommandResult:
        tenant = self._tenants[name]
        try:
            result = await work(tenant.sandbox)
        except BaseException:
            self.sessions.complete(name, epoch, command_id, None, now=self._clock.monotonic())
            raise
        self.sessions.complete(name, epoch, command_id, result, now=self._clock.monotonic())
        tenant.saw(result)
        self._metrics.saw(result)
        return result

    def sandbox(self, name: str) -> Sandbox:
        """The sandbox of a live session, for files. Raises Stale."""
        tenant = self._tenants.get(name)
        if tenant is None:
            raise Stale(f"session {name!r} is not here", field="session_id", hint="start another session")
        return tenant.sandbox

    async def end(self, name: str, how: End, reply: Reply | None = None) -> bool:
        """End a session and destroy its sandbox; True if there was one. A tombstone keeps `reply`."""
        session = self.sessions.end(name, how, reply)
        tenant = self._tenants.pop(name, None)
        self._freed.set()
        if session is None:
            return False
        self._metrics.sessions.set(len(self.sessions))
        self._metrics.ended.labels(how.value).inc()
        if tenant is not None:
            await tenant.sandbox.destroy()
            self._freed.set()
            self._publish(self._record(session, tenant, how))
        return tenant is not None

    def _record(self, session: Session[Reply], tenant: _Tenancy, how: End) -> sandbox_pb2.SessionRecord:
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
        self._freed.set()
        running: list[asyncio.Task[Any]] = [*self._commands.values(), *self._creating.values()]
        with contextlib.suppress(TimeoutError):
            async with self._clock.timeout(self._settings.drain_s):
                await asyncio.gather(*(asyncio.shield(task) for task in running), return_exceptions=True)
        for session in self.sessions:
            with contextlib.suppress(Unavailable):
                await self.end(session.name, End.DRAINED)
        await self._pool.close()


def stamp(seconds: float) -> Timestamp:
    """Unix seconds as a protobuf timestamp."""
    value = Timestamp()
    value.FromNanoseconds(int(seconds * 1e9))
    return value
