"""`run`, `up`, `down`: the embedded platform from the command line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from temper.client.cli.exits import INTERRUPTED, OK, say
from temper.client.cli.options import DEFAULT_DATA_DIR, DataDirOption, Output, OutputOption

if TYPE_CHECKING:
    from temper.client.runs.run import Finished
    from temper.client.sdk.types import Job

SetOption = Annotated[
    tuple[str, ...], Parameter(name="--set", help="Override a value of the job file: phase.rl.steps=10.")
]
SeedOption = Annotated[int | None, Parameter(name="--seed", help="Seed of everything random in the job.")]
PortOption = Annotated[
    int | None, Parameter(name="--port", help="First of seven consecutive ports; left out: free ones.")
]
WithoutOption = Annotated[tuple[str, ...], Parameter(name="--without", help="Do not start this service.")]
ServiceSetOption = Annotated[
    tuple[str, ...],
    Parameter(name="--service-set", help="Override a setting of a service: trainer.logging.level=debug."),
]


def register(app: App) -> None:
    """Add the commands."""
    app.command(run)
    app.command(up)
    app.command(down)


def run(
    job: Annotated[Path, Parameter(help="Job file (TOML).")],
    /,
    *,
    seed: SeedOption = None,
    set_: SetOption = (),
    summary: Annotated[Path | None, Parameter(help="Write the numbers of the job to this JSON file.")] = None,
    report: Annotated[
        Path | None, Parameter(help="File of the report; left out: DATA_DIR/reports/JOB.html.")
    ] = None,
    no_report: Annotated[bool, Parameter(help="Write no report.")] = False,
    keep_up: Annotated[bool, Parameter(help="Leave the platform running afterwards.")] = False,
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    port: PortOption = None,
    without: WithoutOption = (),
    service_set: ServiceSetOption = (),
    plain: Annotated[bool, Parameter(help="Lines instead of bars.")] = False,
    output: OutputOption = "table",
) -> int:
    """Train: start the platform, run the job, show it live, write a report, stop everything.

    Exit code 0 only if the job succeeded. Uses the platform that runs in the data directory, if one does.
    Ctrl-C cancels the job and stops the platform; twice kills everything.
    """
    import asyncio

    from temper.client.platform.detached import UpOptions, background
    from temper.client.platform.layout import DataDir
    from temper.client.platform.lock import holder
    from temper.client.runs.run import Run, RunOptions
    from temper.client.runs.submit import prepare

    prepared = prepare(job, set_, seed)  # a mistake in the file costs no platform
    _require_place("--summary", summary)
    _require_place("--report", report)
    layout = DataDir.at(data_dir)
    if keep_up and holder(layout.lock_file) is None:
        background(UpOptions(layout, port, without, service_set), say)
    options = RunOptions(
        layout=layout,
        summary=summary,
        report=report,
        write_report=not no_report,
        base_port=port,
        without=without,
        overrides=service_set,
        bars=False if plain else None,
    )
    finished = asyncio.run(Run(prepared, options).go())
    _tell_result(finished, output)
    return finished.exit_code


def _require_place(option: str, path: Path | None) -> None:
    """A file that cannot be written is told before the training, not after it."""
    from temper.runtime.errors import Rejected

    if path is not None and (path.is_dir() or not path.resolve().parent.is_dir()):
        what = "is a directory" if path.is_dir() else "lies in no directory that exists"
        raise Rejected(f"{path} {what}", field=option, hint="name a file in a directory that is there")


def _tell_result(finished: Finished, output: Output) -> None:
    if finished.job is None:
        say("interrupted before the job was created")
        return
    show_result(finished.job, output)
    if finished.report is not None:
        say(f"report: {finished.report}")


def show_result(job: Job, output: Output) -> None:
    """What came of a job: the table of evaluations or the summary as data, its last state as talk."""
    from rich.console import Console

    from temper.client.cli.output import emit_one
    from temper.client.live.results import results_table
    from temper.client.live.summary import summarize

    if output != "table":
        emit_one(summarize(job), output)
    elif job.evals:
        Console().print(results_table(job))
    say(f"job {job.id} {job.state}{f': {job.reason}' if job.reason else ''}")


def up(
    *,
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    foreground: Annotated[bool, Parameter(help="Stay; Ctrl-C stops the platform.")] = False,
    port: PortOption = None,
    without: WithoutOption = (),
    service_set: ServiceSetOption = (),
    output: OutputOption = "table",
) -> int:
    """Start the platform on this machine and leave it running (`temper down` stops it)."""
    import asyncio

    from temper.client.cli.output import emit_one
    from temper.client.platform.detached import UpOptions, background
    from temper.client.platform.detached import foreground as stay
    from temper.client.platform.layout import DataDir
    from temper.client.sdk.target import read_platform_file

    options = UpOptions(DataDir.at(data_dir), port, without, service_set)
    if foreground:
        return asyncio.run(stay(options, say))
    try:
        background(options, say)
    except KeyboardInterrupt:
        down(data_dir=data_dir)
        return INTERRUPTED
    emit_one(read_platform_file(options.layout.root), output)
    return OK


def down(
    *,
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    force: Annotated[bool, Parameter(help="Kill instead of draining.")] = False,
) -> int:
    """Stop the platform that runs in the data directory."""
    from temper.client.platform.detached import down as stop
    from temper.client.platform.layout import DataDir

    layout = DataDir.at(data_dir)
    say(
        f"stopped the platform in {layout.root}"
        if stop(layout, force=force)
        else f"nothing runs in {layout.root}"
    )
    return OK
