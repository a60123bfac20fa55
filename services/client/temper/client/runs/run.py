"""`temper run`: everything from a job file to its result, and nothing left running afterwards.

checked job file -> platform (found in the data directory, or our own) -> submit -> follow -> summary, report
Ctrl-C: the job is cancelled, the platform drained, exit code 130; a second Ctrl-C kills everything
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from temper.client.live.summary import summarize
from temper.client.platform import DataDir, Platform
from temper.client.platform.lock import holder
from temper.client.runs.display import Display
from temper.client.runs.follow import follow
from temper.client.runs.stops import Stops
from temper.client.runs.submit import Prepared, submit
from temper.client.sdk.aio import AsyncClient
from temper.client.sdk.target import Target, embedded, read_platform_file
from temper.client.sdk.types import ENDED, STATES, Job, JobState
from temper.runtime.errors import TemperError

R = TypeVar("R")
_UNFINISHED: tuple[JobState, ...] = tuple(
    state for state in STATES if state not in ENDED and state != "paused"
)
_CANCEL_S = 20.0  # for the job to end after it was cancelled; then the platform goes down anyway


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to run. Example: `RunOptions(DataDir.at(Path(".temper")))`."""

    layout: DataDir
    """Where the platform keeps its files."""
    summary: Path | None = None
    """File for the numbers."""
    report: Path | None = None
    """File for the report; None: `reports/<job>.html` in the data directory."""
    write_report: bool = True
    """Whether to write one at all."""
    base_port: int | None = None
    """First of consecutive ports; None: free ones."""
    without: tuple[str, ...] = ()
    """Services not to start."""
    overrides: Sequence[str] = ()
    """Settings of services, `service.key=value`."""
    bars: bool | None = None
    """Bars or lines; None: bars on a terminal."""


@dataclass(frozen=True, slots=True)
class Finished:
    """What came of it. Example: `Finished(job, 0)`."""

    job: Job | None
    """The job in its last state; None if it was interrupted before it existed."""
    exit_code: int
    """0 only if the job succeeded; 128 + signal after an interruption."""
    report: Path | None = None
    """The report, if one was written."""


class Run:
    """One run. `go` is all there is to call."""

    def __init__(self, prepared: Prepared, options: RunOptions) -> None:
        self._prepared = prepared
        self._options = options
        self._display = Display(bars=options.bars)
        self._platform: Platform | None = None
        self._stops = Stops(self._kill)

    async def go(self) -> Finished:
        """Run to the end. Raises TemperError when the platform or the server refuses."""
        self._stops.listen()
        async with self._display.shown():
            try:
                target = await self._unless_stopped(self._reach_platform())
                if target is None:
                    return Finished(None, self._stops.exit_code)
                async with AsyncClient(target) as client:
                    return await self._with(client)
            finally:
                if self._platform is not None:
                    self._display.say("stopping the platform")
                    await self._platform.stop()

    async def _reach_platform(self) -> Target:
        """The platform that runs in the data directory, or a new one of our own."""
        layout = self._options.layout
        other = holder(layout.lock_file)
        state = read_platform_file(layout.root) or {}
        if other is not None and state.get("lasting"):  # one that ends with another run is none to build on
            self._display.say(f"using the platform that runs in {layout.root} (process {other})")
            return embedded(layout.root)
        self._platform = Platform(
            layout,
            say=self._display.say,
            base_port=self._options.base_port,
            without=self._options.without,
            overrides=self._options.overrides,
            lasting=False,
        )
        return await self._platform.start()

    async def _with(self, client: AsyncClient) -> Finished:
        await self._unless_stopped(self._tell_unfinished(client))
        self._display.say("submitting the job")
        job = await self._unless_stopped(submit(client, self._prepared))
        if job is None:
            return Finished(None, self._stops.exit_code)
        done = await self._unless_stopped(follow(client, job.id, self._display))
        interrupted = done is None
        job = await self._cancelled(client, job.id) if done is None else done
        self._write_summary(job)
        report = None if interrupted else await self._write_report(client, job)
        success = 0 if job.state == "succeeded" else 1
        return Finished(job, self._stops.exit_code if interrupted else success, report)

    async def _tell_unfinished(self, client: AsyncClient) -> None:
        """Jobs that an earlier run left when it was killed go on, and may hold the only trainer: say so."""
        for job in await client.jobs.list(states=_UNFINISHED):
            done = f"{job.state}, step {job.progress.step} of {job.progress.total_steps}"
            way_out = f"`temper job cancel {job.id} --data-dir {self._options.layout.root}` ends it"
            self._display.say(f"job {job.id} from before goes on too ({done}); {way_out}")

    async def _unless_stopped(self, work: Coroutine[Any, Any, R]) -> R | None:
        """The result of `work`, or None when a stop is asked for first; raises what the platform gave up on."""
        doing = asyncio.create_task(work)
        others: list[asyncio.Task[Any]] = [asyncio.create_task(self._stops.asked.wait())]
        if self._platform is not None:
            others.append(asyncio.create_task(self._platform.wait()))
        try:
            done, _ = await asyncio.wait([doing, *others], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            return doing.result() if doing in done else None
        finally:
            for task in (doing, *others):
                task.cancel()
            await asyncio.gather(doing, *others, return_exceptions=True)

    async def _cancelled(self, client: AsyncClient, job_id: str) -> Job:
        """Cancel the job and wait, within bounds, until it has ended."""
        self._display.say("cancelling the job; Ctrl-C again kills everything")
        job = await client.jobs.cancel(job_id, reason="interrupted")
        with suppress(TimeoutError):
            async with asyncio.timeout(_CANCEL_S):
                job = await follow(client, job_id, self._display)
        return job

    def _write_summary(self, job: Job) -> None:
        if self._options.summary is None:
            return
        try:
            self._options.summary.write_text(json.dumps(summarize(job), indent=2) + "\n")
        except OSError as error:
            self._display.say(f"no summary: {error.filename}: {error.strerror}")

    async def _write_report(self, client: AsyncClient, job: Job) -> Path | None:
        """The report; a run does not fail because its report did."""
        if not self._options.write_report:
            return None
        from temper.client.report import write_report

        path = self._options.report or self._options.layout.root / "reports" / f"{job.id}.html"
        try:
            written = await write_report(client, job.id, path, job_file=self._prepared.text)
        except (TemperError, OSError) as error:
            self._display.say(f"no report: {error}")
            return None
        return written[0]

    def _kill(self) -> None:
        if self._platform is not None:
            self._platform.kill()
