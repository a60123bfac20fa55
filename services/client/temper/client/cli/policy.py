"""`temper policy …`: what jobs have published."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from temper.client.cli.exits import say
from temper.client.cli.options import HERE, OutputOption, Where

COLUMNS = ("job_id", "version", "step", "state", "published_at")


def register(app: App) -> None:
    """Add the group."""
    group = App(name="policy", help="Policies that jobs have published.")
    group.command(list_, name="list")
    group.command(export)
    app.command(group)


def list_(*, where: Where = HERE, output: OutputOption = "table") -> None:
    """Last published policy of each job."""
    from temper.client.cli.output import emit

    with where.client("scheduler") as client:
        emit(client.platform.policies(), COLUMNS, output)


def export(
    job_id: Annotated[str, Parameter(help="Job whose policy to export.")],
    directory: Annotated[Path, Parameter(help="New directory, in Hugging Face form.")],
    /,
    *,
    reward_model: Annotated[bool, Parameter(negative="", help="The job's reward model instead.")] = False,
    where: Where = HERE,
    output: OutputOption = "table",
) -> None:
    """Download a policy as a directory that `transformers` and a job file's `policy.checkpoint` read."""
    import asyncio

    from temper.client.cli.output import emit
    from temper.client.runs.export import export as download
    from temper.client.sdk import AsyncClient, Target

    async def work(target: Target) -> list[dict[str, object]]:
        async with AsyncClient(target) as client:
            return await download(client, job_id, directory, reward_model=reward_model)

    with where.reached("scheduler") as target:
        files = asyncio.run(work(target))
    emit(files, ("file", "bytes"), output)
    say(f"exported to {directory}")
