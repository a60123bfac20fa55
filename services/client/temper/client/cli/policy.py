"""`temper policy …`: what jobs have published."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter, validators

from temper.client.cli.exits import say
from temper.client.cli.options import HERE, OutputOption, Where

if TYPE_CHECKING:
    from temper.client.sdk.types import PromotedPolicy

PROMOTED = ("name", "job_id", "version", "verdict", "point", "forced", "reason", "promoted_at", "history")
COLUMNS = ("job_id", "version", "step", "state", "published_at")
_WHOLE = validators.Number(gte=0, lt=2**64)


def register(app: App) -> None:
    """Add the group."""
    group = App(name="policy", help="Policies that jobs have published.")
    group.command(list_, name="list")
    group.command(export)
    group.command(promote)
    group.command(rollback)
    app.command(group)


def list_(
    *,
    promoted: Annotated[bool, Parameter(negative="", help="Names and what they stand for instead.")] = False,
    where: Where = HERE,
    output: OutputOption = "table",
) -> None:
    """Last published policy of each job."""
    from temper.client.cli.output import emit

    with where.client("scheduler") as client:
        if promoted:
            emit([_row(each) for each in client.platform.promotions()], PROMOTED, output)
        else:
            emit(client.platform.policies(), COLUMNS, output)


def promote(
    name: Annotated[str, Parameter(help="Name that shall stand for the version.")],
    job_id: Annotated[str, Parameter(help="Job that published it.")],
    /,
    *,
    version: Annotated[
        int | None, Parameter(help="Left out: the newest that passed its gates.", validator=_WHOLE)
    ] = None,
    force: Annotated[bool, Parameter(negative="", help="Without a passed verdict; recorded.")] = False,
    reason: Annotated[str, Parameter(help="For the record.")] = "",
    where: Where = HERE,
    output: OutputOption = "table",
) -> None:
    """Make a version of a job the one that a name stands for."""
    from temper.client.cli.output import emit

    with where.client("scheduler") as client:
        found = client.platform.promote(name, job_id, version=version, force=force, reason=reason)
    emit([_row(found)], PROMOTED, output)


def rollback(
    name: Annotated[str, Parameter(help="Name.")],
    /,
    *,
    reason: Annotated[str, Parameter(help="For the record.")] = "",
    where: Where = HERE,
    output: OutputOption = "table",
) -> None:
    """Make the version before the current one the one that a name stands for."""
    from temper.client.cli.output import emit

    with where.client("scheduler") as client:
        found = client.platform.demote(name, reason=reason)
    emit([_row(found)], PROMOTED, output)


def _row(policy: PromotedPolicy) -> dict[str, object]:
    """The current promotion of a name."""
    from temper.client.cli.output import plain

    current = plain(policy.history[-1]) if policy.history else {}
    return {"name": policy.name, **current, "history": len(policy.history)}


def export(
    job_id: Annotated[str, Parameter(help="Job whose policy to export; with --promoted, a name.")],
    directory: Annotated[Path, Parameter(help="New directory, in Hugging Face form.")],
    /,
    *,
    reward_model: Annotated[bool, Parameter(negative="", help="The job's reward model instead.")] = False,
    promoted: Annotated[bool, Parameter(negative="", help="What a name stands for.")] = False,
    where: Where = HERE,
    output: OutputOption = "table",
) -> None:
    """Download a policy as a directory that `transformers` and a job file's `policy.checkpoint` read."""
    import asyncio

    from temper.client.cli.output import emit
    from temper.client.runs.export import export as download
    from temper.client.sdk import AsyncClient, Target
    from temper.runtime.errors import Rejected

    if promoted and reward_model:
        raise Rejected(
            "a name stands for a policy, not for a reward model",
            field="reward_model",
            hint="leave --promoted out and give the job",
        )

    async def work(target: Target) -> list[dict[str, object]]:
        async with AsyncClient(target) as client:
            return await download(client, job_id, directory, reward_model=reward_model, promoted=promoted)

    with where.reached("scheduler") as target:
        files = asyncio.run(work(target))
    emit(files, ("file", "bytes"), output)
    say(f"exported to {directory}")
