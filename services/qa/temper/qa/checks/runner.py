"""Runs the checks in stages and writes the report.

    static  ->  startup  ->  runtime + semantic, all at once

A stage that fails a blocking check ends the run: an environment whose manifest is broken is not started, and one that
does not start has no verdicts to judge. So the first failing check is the cause and not its consequences.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from temper.api.qa.v1.qa_pb2 import CheckReport, CheckResult, EnvironmentRecord, Severity
from temper.qa.checks.base import Check, Subject
from temper.qa.checks.runtime import RUNTIME, startup
from temper.qa.checks.semantic import SEMANTIC
from temper.qa.checks.static import STATIC
from temper.runtime.clock import Clock
from temper.runtime.errors import Rejected

CHECKER = "1"  # grows when a check changes its meaning: reports of older checkers are not reused
STAGES: tuple[tuple[Check, ...], ...] = (STATIC, (startup,), (*RUNTIME, *SEMANTIC))


async def run_checks(subject: Subject, *, backend: str, clock: Clock) -> CheckReport:
    """All checks of one variant. Raises Unavailable if the sandbox service goes away: that is no verdict."""
    report = CheckReport(digest=subject.digest, checker=CHECKER, backend=backend)
    try:
        for stage in STAGES:
            report.results.extend(await _stage(stage, subject, clock))
            if first_failure(report.results):
                break
    finally:
        await subject.measured.close()
    report.passed = first_failure(report.results) is None
    report.finished_at.FromNanoseconds(int(clock.now() * 1e9))
    return report


def first_failure(results: Sequence[CheckResult]) -> CheckResult | None:
    """The first blocking check that failed."""
    blocking = (each for each in results if each.severity == Severity.SEVERITY_ERROR and not each.passed)
    return next(blocking, None)


def reason_of(record: EnvironmentRecord) -> str:
    """Why an environment was refused, for people: the failing check and its evidence."""
    failure = first_failure(record.report.results)
    return f"{failure.id}: {failure.evidence}" if failure else record.reason


async def _stage(checks: Sequence[Check], subject: Subject, clock: Clock) -> list[CheckResult]:
    """Run them together; the first exception ends the others."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_result(check, subject, clock)) for check in checks]
    return [task.result() for task in tasks]


async def _result(check: Check, subject: Subject, clock: Clock) -> CheckResult:
    started = clock.monotonic()
    try:
        finding = await check.run(subject)
        passed, evidence = finding.passed, finding.evidence
    except Rejected as refused:  # the environment refused a task that the check asked for
        passed, evidence = False, str(refused)
    return CheckResult(
        id=check.id,
        severity=check.severity,
        passed=passed,
        evidence=evidence,
        wall_s=clock.monotonic() - started,
    )
