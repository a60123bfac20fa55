"""The gate: an environment variant is checked once per (digest, checker, backend), and only an admitted one gets through.

Two jobs that ask for the same variant at the same time wait for the same run of the checks.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from typing import Any

from temper.api.common.v1.common_pb2 import EnvRef
from temper.api.qa.v1.qa_pb2 import CheckReport, EnvironmentRecord, VerdictRecord
from temper.qa import state
from temper.qa.checks.base import Subject
from temper.qa.checks.runner import CHECKER, reason_of, run_checks
from temper.qa.config import ChecksConfig
from temper.qa.engine.base import Probe
from temper.qa.episodes import Measurements, Player
from temper.qa.metrics import Metrics
from temper.qa.records import Wish, log_key, shown
from temper.qa.registry import Registry
from temper.runtime.clock import Clock
from temper.runtime.errors import Rejected, TemperError, Unavailable
from temper.runtime.log.base import EventLog
from temper.runtime.telemetry import get_logger

TOPIC = "verdicts"
_RETRY_S = 0.25  # pause between two looks for a sandbox host, or two appends
_APPENDS = 20  # tries to log a verdict while the log is away


@dataclass(frozen=True, slots=True)
class Parts:
    """What admission works with."""

    registry: Registry
    """Records and bundles."""
    probe: Probe
    """Where environments run."""
    log: EventLog
    """Receives verdicts."""
    clock: Clock
    """Time."""
    config: ChecksConfig
    """Bounds of the checks."""
    metrics: Metrics
    """Counters."""


class Admission:
    """Runs checks and keeps their results."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._running: dict[str, asyncio.Task[EnvironmentRecord]] = {}
        self._lifted: set[asyncio.Task[None]] = set()

    @property
    def running(self) -> int:
        """Environments under test now."""
        return len(self._running)

    async def resolve(self, wish: Wish, *, dry_run: bool = False) -> EnvRef:
        """The admitted variant that a wish means; checks run if there is no verdict yet (not with `dry_run`).

        Raises Rejected with the failing check's name, Unavailable if the checks cannot run now.
        """
        key, record = await self._parts.registry.find(wish)
        self._refuse_quarantined(record)
        if dry_run:
            if record.state == state.REJECTED:
                raise refusal(record)
            return record.env
        record = await self.check(key, record)
        self._refuse_quarantined(record)
        if record.state != state.ADMITTED:
            raise refusal(record)
        return record.env

    async def check(self, key: str, record: EnvironmentRecord, *, force: bool = False) -> EnvironmentRecord:
        """The record with a verdict for the present checker and backend."""
        backend = await self._backend()
        if not force and state.has_verdict(record, CHECKER, backend):
            return record
        running = self._running.get(key)
        if running is None:
            running = asyncio.create_task(self._check(key, record, backend))
            self._running[key] = running
            running.add_done_callback(lambda _: self._running.pop(key, None))
        return await asyncio.shield(running)

    async def quarantine(self, wish: Wish, reason: str, *, lift: bool) -> list[EnvironmentRecord]:
        """Withdraw every variant of a version, or check them again: jobs that mix them wait for the verdict."""
        registry = self._parts.registry
        own = registry.own(wish.name, wish.version)
        change = state.lift if lift else state.quarantine(reason)
        keys = registry.keys_of(own.env.name, own.env.version)
        changed = [await registry.change(key, own, change) for key in keys]
        for record in changed:
            await self._announce(record, "lifted" if lift else "quarantined")
        get_logger().warning(
            "environment.lifted" if lift else "environment.quarantined", env=shown(own.env), reason=reason
        )
        if lift:
            for key, record in zip(keys, changed, strict=True):
                task = asyncio.create_task(self._check_lifted(key, record))
                self._lifted.add(task)
                task.add_done_callback(self._lifted.discard)
        return changed

    async def _check_lifted(self, key: str, record: EnvironmentRecord) -> None:
        try:
            await self.check(key, record)
        except TemperError as error:  # it stays a draft: the next one who asks for it has it checked
            get_logger().warning("environment.unchecked", env=shown(record.env), error=str(error))

    async def stop(self) -> None:
        """Give up checks that run; their environments stay drafts."""
        tasks: list[asyncio.Task[Any]] = [*self._running.values(), *self._lifted]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _check(self, key: str, record: EnvironmentRecord, backend: str) -> EnvironmentRecord:
        registry = self._parts.registry
        started = self._parts.clock.monotonic()
        record = await registry.change(key, record, state.begin)
        judged = False
        try:
            report = await self._report(record, backend)
            checked = EnvironmentRecord(report=report)
            record = await registry.change(key, record, state.judge(report, reason_of(checked)))
            judged = True
        finally:
            if not judged:
                await registry.change(key, record, state.give_up)
        await self._announce(record, "admitted" if report.passed else "rejected")
        seconds = self._parts.clock.monotonic() - started
        self._parts.metrics.checked("admitted" if report.passed else "rejected", seconds)
        get_logger().info(
            "environment.checked",
            env=shown(record.env),
            passed=report.passed,
            reason=record.reason,
            seconds=round(seconds, 2),
        )
        return record

    async def _report(self, record: EnvironmentRecord, backend: str) -> CheckReport:
        parts, config = self._parts, self._parts.config
        asset = await parts.registry.asset(record.env.bundle)
        player = Player(parts.probe, record.env, run=secrets.token_hex(4), concurrency=config.concurrency)
        measured = Measurements(player, styles=asset.manifest.oracle.styles, tasks=config.tasks)
        subject = Subject(
            asset.manifest, asset.tree, asset.data, record.env.digest, record.env.params_json, measured
        )
        try:
            async with parts.clock.timeout(config.timeout_s):
                return await run_checks(subject, backend=backend, clock=parts.clock)
        except TimeoutError:
            raise Unavailable(
                f"checks of {shown(record.env)} did not end within {config.timeout_s:g} s",
                hint="the machine is busy, or the environment is slow; raise checks.timeout_s",
            ) from None
        except ExceptionGroup as failures:  # one check's Unavailable, carried by the task group
            raise _only(failures) from None

    async def _backend(self) -> str:
        """Name of the backend; waits a bounded time for a host that is still starting."""
        give_up = self._parts.clock.monotonic() + self._parts.config.sandbox_wait_s
        while True:
            try:
                return await self._parts.probe.backend()
            except Unavailable as error:
                if self._parts.clock.monotonic() >= give_up:
                    raise Unavailable(
                        f"no sandbox host to run checks on: {error.message}",
                        hint="start the sandbox service; `temper service list` shows what is there",
                    ) from None
                await self._parts.clock.sleep(_RETRY_S)

    async def _announce(self, record: EnvironmentRecord, verdict: str) -> None:
        message = VerdictRecord(environment=record, verdict=verdict)
        message.time.FromNanoseconds(int(self._parts.clock.now() * 1e9))
        identity = f"{record.env.digest[:24]}/{record.revision}"
        for _ in range(_APPENDS):
            try:
                await self._parts.log.append(TOPIC, log_key(record.env.name), message, id=identity)
                return
            except Unavailable as error:
                get_logger().warning("verdict.log_unavailable", env=shown(record.env), error=str(error))
                await self._parts.clock.sleep(_RETRY_S)
        # The bucket has the verdict, and is what decides; only the history misses it.
        get_logger().error("verdict.not_logged", env=shown(record.env), verdict=verdict)

    @staticmethod
    def _refuse_quarantined(record: EnvironmentRecord) -> None:
        if record.state == state.QUARANTINED:
            raise Rejected(
                f"{shown(record.env)} is quarantined: {record.reason}",
                field="env",
                hint="choose another version, or lift the quarantine",
            )


def refusal(record: EnvironmentRecord) -> Rejected:
    """Why a variant is not let through, with the failing check's name."""
    return Rejected(
        f"{shown(record.env)} is not admitted: {record.reason or reason_of(record)}",
        field="env",
        hint=f"`temper env check {record.env.name}` shows the whole report",
    )


def _only(failures: ExceptionGroup[Exception]) -> Exception:
    """The first error of a group of groups."""
    first = failures.exceptions[0]
    return _only(first) if isinstance(first, ExceptionGroup) else first
