"""`temper approvals …`: what waits for a person's word."""

from __future__ import annotations

import getpass
from typing import Annotated

from cyclopts import App, Parameter

from temper.client.cli.options import HERE, OutputOption, Where

COLUMNS = ("approval_id", "kind", "state", "env", "subject", "expires_at")
IdArgument = Annotated[str, Parameter(help="As `temper approvals list` shows it.")]
ReasonOption = Annotated[str, Parameter(help="Why, for the record.")]


def register(app: App) -> None:
    """Add the group."""
    group = App(name="approvals", help="What waits for a person: tool calls, commands, connections.")
    group.command(list_, name="list")
    group.command(grant)
    group.command(deny)
    app.command(group)


def list_(
    *,
    all_: Annotated[bool, Parameter(name="--all", help="Answered and expired ones too.")] = False,
    where: Where = HERE,
    output: OutputOption = "table",
) -> None:
    """What waits, oldest first."""
    from temper.client.cli.output import emit

    with where.client("scheduler") as client:
        emit(client.platform.approvals(everything=all_), COLUMNS, output)


def grant(
    approval_id: IdArgument,
    /,
    *,
    reason: ReasonOption = "",
    where: Where = HERE,
    output: OutputOption = "table",
) -> None:
    """Say yes to exactly this, once."""
    _resolve(approval_id, grant=True, reason=reason, where=where, output=output)


def deny(
    approval_id: IdArgument,
    /,
    *,
    reason: ReasonOption = "",
    where: Where = HERE,
    output: OutputOption = "table",
) -> None:
    """Say no."""
    _resolve(approval_id, grant=False, reason=reason, where=where, output=output)


def _resolve(approval_id: str, *, grant: bool, reason: str, where: Where, output: OutputOption) -> None:
    from temper.client.cli.output import emit_one

    with where.client("scheduler") as client:
        done = client.platform.resolve_approval(approval_id, grant=grant, reason=reason, by=getpass.getuser())
        emit_one(done, output)
