"""`temper job …`: jobs of a running platform."""

from __future__ import annotations

from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from temper.client.cli.exits import FAILED, OK, TIMED_OUT, say
from temper.client.cli.options import HERE, Output, OutputOption, Where
from temper.client.cli.running import SeedOption, SetOption

if TYPE_CHECKING:
    from temper.client.sdk import AsyncClient
    from temper.client.sdk.types import Job

JobId = Annotated[str, Parameter(help="Job id.")]
WaitOption = Annotated[
    bool, Parameter(name="--wait", help="Wait for the end; exit 0 only if the job succeeded.")
]
TimeoutOption = Annotated[
    float | None, Parameter(name="--timeout", help="Most seconds to wait (exit code 6).")
]
PlainOption = Annotated[bool, Parameter(name="--plain", help="Lines instead of bars.")]
COLUMNS = ("id", "name", "state", "step", "steps", "created_at", "reason")

_EVENTS = """
SELECT time, kind, text AS message FROM (
    SELECT time, kind, if(kind = 'state', concat(state, if(message = '', '', ': '), message), message) AS text
    FROM job_events FINAL WHERE job_id = {job:String} AND kind IN ('state', 'notice', 'gate')
    UNION ALL
    SELECT time, 'eval' AS kind, concat(point, ' ', domain, ' pass@1 ', toString(round(pass_at_1, 3)),
        ' [', toString(round(low, 2)), ', ', toString(round(high, 2)), '] n=', toString(n)) AS text
    FROM evals FINAL WHERE job_id = {job:String}
) ORDER BY time DESC LIMIT {limit:UInt32}
"""


def register(app: App) -> None:
    """Add the group."""
    group = App(name="job", help="Submit, watch and steer jobs.")
    for command in (submit, get, watch, logs, cancel, pause, resume, rollback):
        group.command(command)
    group.command(list_, name="list")
    app.command(group)


def submit(
    job: Annotated[Path, Parameter(help="Job file (TOML).")],
    /,
    *,
    seed: SeedOption = None,
    set_: SetOption = (),
    request_id: Annotated[
        str | None, Parameter(help="The same id gives the same job, however often.")
    ] = None,
    check: Annotated[bool, Parameter(help="Only check; create nothing.")] = False,
    wait: WaitOption = False,
    timeout: TimeoutOption = None,
    plain: PlainOption = False,
    where: Where = HERE,
    output: OutputOption = "table",
) -> int:
    """Check a job file, upload its policy, create the job."""
    from temper.client.runs.submit import prepare
    from temper.client.runs.submit import submit as create

    prepared = prepare(job, set_, seed)

    async def work(client: AsyncClient) -> int:
        created = await create(client, prepared, request_id=request_id, validate_only=check)
        if check:
            say(f"{job} is valid")
            return OK
        if not wait:
            _show(created, output)
            return OK
        return await _follow(client, created.id, plain=plain, output=output)

    return _within(where, work, timeout)


def list_(
    *,
    state: Annotated[tuple[str, ...], Parameter(help="Only jobs in this state.")] = (),
    where: Where = HERE,
    output: OutputOption = "table",
) -> None:
    """Jobs, newest first."""
    from temper.client.cli.output import emit, plain
    from temper.client.jobfile.problems import nearest
    from temper.client.sdk.types import STATES
    from temper.runtime.errors import Rejected

    for name in state:
        if name not in STATES:
            raise Rejected(f"there is no state {name!r}", field="--state", hint=nearest(name, STATES))
    with where.client("scheduler") as client:
        jobs = client.jobs.list(states=tuple(each for each in STATES if each in state))
    rows = [{**plain(job), "step": job.progress.step, "steps": job.progress.total_steps} for job in jobs]
    emit(rows, COLUMNS, output)


def get(job_id: JobId, /, *, where: Where = HERE, output: OutputOption = "table") -> None:
    """One job: its effective specification, progress and evaluations."""
    with where.client("scheduler") as client:
        _show(client.jobs.get(job_id), output)


def watch(
    job_id: JobId,
    /,
    *,
    timeout: TimeoutOption = None,
    plain: PlainOption = False,
    where: Where = HERE,
    output: OutputOption = "table",
) -> int:
    """Show a job live until it ends; exit 0 only if it succeeded. Ctrl-C stops watching, not the job."""

    async def work(client: AsyncClient) -> int:
        return await _follow(client, job_id, plain=plain, output=output)

    return _within(where, work, timeout)


def logs(
    job_id: JobId,
    /,
    *,
    follow: Annotated[bool, Parameter(name=["--follow", "-f"], help="Go on until the job ends.")] = False,
    limit: Annotated[int, Parameter(help="Most events from the past.")] = 200,
    where: Where = HERE,
    output: OutputOption = "table",
) -> int:
    """Events of a job: changes of state, evaluations, notices. Past ones come from ClickHouse."""
    from temper.client.cli.output import emit

    with where.client() as client:
        client.jobs.get(job_id)  # an unknown job is an error, not an empty table
        table = client.query.sql(_EVENTS, parameters={"job": job_id, "limit": str(limit)}, fresh=True)
        emit(table.records()[::-1], table.columns, output)
    return watch(job_id, plain=True, where=where, output=output) if follow else OK


def cancel(
    job_id: JobId,
    /,
    *,
    reason: Annotated[str, Parameter(help="For the record.")] = "cancelled by the user",
    wait: Annotated[bool, Parameter(help="Wait until it has ended.")] = False,
    timeout: TimeoutOption = None,
    where: Where = HERE,
    output: OutputOption = "table",
) -> int:
    """End a job."""

    async def work(client: AsyncClient) -> int:
        job = await client.jobs.cancel(job_id, reason=reason)
        if wait:
            async for _ in client.jobs.watch(job_id):
                pass
            job = await client.jobs.get(job_id)
        _show(job, output)
        return OK

    return _within(where, work, timeout)


def pause(job_id: JobId, /, *, where: Where = HERE, output: OutputOption = "table") -> None:
    """Stop issuing groups; running ones finish."""
    with where.client() as client:
        _show(client.jobs.pause(job_id), output)


def resume(job_id: JobId, /, *, where: Where = HERE, output: OutputOption = "table") -> None:
    """Go on with a paused job."""
    with where.client() as client:
        _show(client.jobs.resume(job_id), output)


def rollback(
    job_id: JobId,
    /,
    *,
    reason: Annotated[str, Parameter(help="For the record.")] = "",
    where: Where = HERE,
    output: OutputOption = "table",
) -> None:
    """Send training back to the last accepted evaluation; its job file must allow rollbacks."""
    with where.client("scheduler") as client:
        _show(client.jobs.roll_back(job_id, reason=reason), output)


def _show(job: Job, output: Output) -> None:
    from temper.client.cli.output import emit_one, plain

    record = plain(job)
    if output == "table":  # the whole specification is for programs
        short = {key: record[key] for key in ("id", "name", "state", "reason") if record[key]}
        progress = {key: value for key, value in record["progress"].items() if value}
        emit_one({**short, "progress": progress} if progress else short, output)
    else:
        emit_one(record, output)


async def _follow(client: AsyncClient, job_id: str, *, plain: bool, output: Output) -> int:
    from temper.client.cli.running import show_result
    from temper.client.runs.display import Display
    from temper.client.runs.follow import follow

    display = Display(bars=False if plain else None)
    async with display.shown():
        job = await follow(client, job_id, display)
    show_result(job, output)
    return OK if job.state == "succeeded" else FAILED


def _within(where: Where, work: Any, timeout: float | None) -> int:
    """Run `work(client)` with a client, within `timeout` seconds."""
    import asyncio

    async def bounded() -> int:
        async with where.async_client() as client:
            doing: Coroutine[Any, Any, int] = work(client)
            try:
                async with asyncio.timeout(timeout):
                    return await doing
            except TimeoutError:
                say(f"not done within {timeout:g} s")
                return TIMED_OUT

    return asyncio.run(bounded())
