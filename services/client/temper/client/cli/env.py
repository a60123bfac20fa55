"""`temper env …`: environments as assets, and the gate they pass."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from temper.client.cli.exits import FAILED, OK, say
from temper.client.cli.options import HERE, Output, OutputOption, Where

if TYPE_CHECKING:
    from temper.client.sdk.types import Environment

EnvName = Annotated[str, Parameter(help="`name` for the newest version, or `name@1.2.3`.")]
ParamOption = Annotated[
    tuple[str, ...], Parameter(name="--param", help="Parameter of the variant: KEY=VALUE.")
]
COLUMNS = ("name", "version", "state", "domain", "solve_rate", "samples", "description", "reason")


def register(app: App) -> None:
    """Add the group."""
    group = App(name="env", help="Register, check and withdraw environments.")
    for command in (register_, check, get, quarantine, exposure):
        group.command(command, name=command.__name__.rstrip("_"))
    group.command(list_, name="list")
    app.command(group)


def register_(
    directory: Annotated[Path, Parameter(help="Directory with env.toml and env.py.")],
    /,
    *,
    where: Where = HERE,
    output: OutputOption = "table",
) -> None:
    """Pack a directory and add it to the registry as a draft; `env check` admits it."""
    from temper.client.bundle import pack

    content = pack(directory)
    with where.client() as client:
        ref = client.artifacts.upload_bytes(f"{directory.resolve().name}.tar", content)
        _show(client.environments.register(ref), output)


def check(
    name: EnvName,
    /,
    *,
    param: ParamOption = (),
    force: Annotated[bool, Parameter(help="Run again although a report exists.")] = False,
    where: Where = HERE,
    output: OutputOption = "table",
) -> int:
    """Run the admission checks; exit 0 only if the environment is admitted."""
    from temper.client.cli.output import emit, emit_one

    with where.client() as client:
        environment = client.environments.check(name, params=_params(param), force=force)
    if output == "table":
        emit(environment.checks, ("id", "severity", "passed", "wall_s", "evidence"), output)
    else:
        emit_one(environment, output)
    admitted = environment.state == "admitted"
    reason = f": {environment.reason}" if environment.reason else ""
    say(f"{environment.name}@{environment.version} {environment.state}{reason}")
    return OK if admitted else FAILED


def get(
    name: EnvName, /, *, param: ParamOption = (), where: Where = HERE, output: OutputOption = "table"
) -> None:
    """One environment with its newest report."""
    with where.client() as client:
        _show(client.environments.get(name, params=_params(param)), output)


def list_(
    *,
    prefix: Annotated[str, Parameter(help="Only names that begin with this, such as rg/.")] = "",
    where: Where = HERE,
    output: OutputOption = "table",
) -> None:
    """Registered environments, and families that were not used yet."""
    from temper.client.cli.output import emit

    with where.client() as client:
        emit(client.environments.list(prefix=prefix), COLUMNS, output)


def quarantine(
    name: Annotated[str, Parameter(help="`name@version`.")],
    /,
    *,
    reason: Annotated[str, Parameter(help="Why; shown to everybody.")],
    lift: Annotated[bool, Parameter(help="Lift the quarantine; the checks run again.")] = False,
    where: Where = HERE,
    output: OutputOption = "table",
) -> None:
    """Withdraw a version: mixing stops, samples not yet trained on are revoked."""
    from temper.client.cli.output import emit

    with where.client() as client:
        emit(client.environments.quarantine(name, reason, lift=lift), COLUMNS, output)


def _show(environment: Environment, output: Output) -> None:
    from temper.client.cli.output import emit_one

    emit_one(environment, output)


def _params(texts: tuple[str, ...]) -> dict[str, Any] | None:
    """`["max_terms=3"]` as `{"max_terms": 3}`; values are TOML, or text."""
    from temper.client.jobfile.load import toml_value
    from temper.runtime.errors import Rejected

    params: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise Rejected(f"{text!r} is not KEY=VALUE", field="--param")
        params[key.strip()] = toml_value(value.strip())
    return params or None


def exposure(
    name: Annotated[str, Parameter(help="Environment with its version, e.g. rg/chain_sum@1.0.0.")],
    /,
    *,
    where: Where = HERE,
    output: OutputOption = "table",
) -> None:
    """Which policies were trained on a version, and which names stand for one that builds on them."""
    from temper.client.cli.output import emit
    from temper.runtime.errors import Rejected

    env, at, version = name.rpartition("@")
    if not at or not env or not version:
        hint = f"for example {env or version or 'calc'}@1.0.0"
        raise Rejected(f"{name!r} does not name a version", field="name", hint=hint)
    with where.client("scheduler", "telemetry") as client:
        table = client.query.saved("exposure", parameters={"env": env, "version": version}, fresh=True)
        names = {each.name: each.history[-1] for each in client.platform.promotions() if each.history}
    rows = table.records()
    for row in rows:
        row["promoted_as"] = ", ".join(
            name
            for name, current in names.items()
            if current.job_id == row["job_id"] and current.version >= int(row["first_version"])
        )
    emit(rows, (*table.columns, "promoted_as"), output)
