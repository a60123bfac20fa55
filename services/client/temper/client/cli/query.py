"""`temper query`, `temper report`: questions about what happened."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from temper.client.cli.exits import OK, say
from temper.client.cli.options import HERE, OutputOption, Where


def register(app: App) -> None:
    """Add both commands."""
    app.command(query)
    app.command(report)


def query(
    sql: Annotated[str | None, Parameter(help="One SELECT.")] = None,
    /,
    *,
    saved: Annotated[str | None, Parameter(help="Name of a saved query instead.")] = None,
    list_: Annotated[bool, Parameter(name="--list", help="List the saved queries.")] = False,
    param: Annotated[
        tuple[str, ...], Parameter(name="--param", help="Value of a {name:Type} in the query: NAME=VALUE.")
    ] = (),
    max_rows: Annotated[int, Parameter(help="Most rows, at most 100000.")] = 1000,
    timeout: Annotated[float, Parameter(help="Most seconds, at most 300.")] = 30.0,
    fresh: Annotated[
        bool, Parameter(negative="--stale", help="Wait for everything that was logged before the question.")
    ] = True,
    where: Where = HERE,
    output: OutputOption = "table",
) -> int:
    """Ask ClickHouse: read-only, with limits on rows, time and memory."""
    from temper.client.cli.output import emit
    from temper.runtime.errors import Rejected

    if [sql is not None, saved is not None, list_].count(True) != 1:
        raise Rejected("give exactly one of SQL, --saved NAME, --list", field="query")
    with where.client("telemetry") as client:
        if list_:
            emit(client.query.list(), ("name", "description", "parameters"), output)
            return OK
        ask = client.query.saved if saved is not None else client.query.sql
        table = ask(
            saved or sql or "",
            parameters=_parameters(param),
            max_rows=max_rows,
            timeout_s=timeout,
            fresh=fresh,
        )
    emit(table.records(), table.columns, output)
    cut = f", cut at {max_rows} (--max-rows)" if table.truncated else ""
    say(f"{len(table.rows)} rows in {table.elapsed_s:.3f} s{cut}")
    return OK


def report(
    job_id: Annotated[str, Parameter(help="Job id.")],
    /,
    *,
    file: Annotated[Path | None, Parameter(help="HTML file; left out: report-JOB.html.")] = None,
    png: Annotated[
        Path | None,
        Parameter(help="Picture of the curves; left out: beside the HTML, if matplotlib is there."),
    ] = None,
    job_file: Annotated[Path | None, Parameter(help="Job file to show as it was written.")] = None,
    where: Where = HERE,
) -> int:
    """Write one self-contained HTML page about a job: curves, before and after, trajectories, versions."""
    import asyncio

    from temper.client.report import write_report
    from temper.client.sdk import AsyncClient, Target

    path = file or Path(f"report-{job_id}.html")
    text = job_file.read_text() if job_file else None

    async def work(target: Target) -> list[Path]:
        async with AsyncClient(target) as client:
            return await write_report(client, job_id, path, job_file=text, png=png)

    with where.reached("scheduler", "qa", "telemetry") as target:
        for written in asyncio.run(work(target)):
            say(f"wrote {written}")
    return OK


def _parameters(texts: tuple[str, ...]) -> dict[str, str]:
    from temper.runtime.errors import Rejected

    parameters: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise Rejected(f"{text!r} is not NAME=VALUE", field="--param")
        parameters[name.strip()] = value
    return parameters
