"""`temper service …`, `temper dead …`: who is there, and what is stuck."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from temper.client.cli.exits import say
from temper.client.cli.options import HERE, OutputOption, Where

SERVICE_COLUMNS = ("service", "instance", "state", "pid", "host", "started_at", "seen_at", "status")
DEAD_COLUMNS = ("seq", "subject", "reason", "type", "deliveries", "time")
Seq = Annotated[int, Parameter(help="Number of the dead letter, from `temper dead list`.")]


def register(app: App) -> None:
    """Add both groups."""
    service = App(name="service", help="Live instances of services.")
    service.command(services, name="list")
    service.command(drain)
    dead = App(name="dead", help="Messages that could not be processed.")
    dead.command(dead_list, name="list")
    dead.command(retry)
    dead.command(drop)
    app.command(service)
    app.command(dead)


def services(
    service: Annotated[str, Parameter(help="Only this service.")] = "",
    /,
    *,
    where: Where = HERE,
    output: OutputOption = "table",
) -> None:
    """Live instances with what they say about themselves."""
    from temper.client.cli.output import emit

    with where.client() as client:
        emit(client.platform.services(service), SERVICE_COLUMNS, output)


def drain(
    service: Annotated[str, Parameter(help="Service name.")],
    instance: Annotated[str, Parameter(help="Instance id.")],
    /,
    *,
    wait: Annotated[bool, Parameter(help="Wait until it is gone.")] = False,
    timeout: Annotated[float, Parameter(help="Most seconds to wait (exit code 3).")] = 60.0,
    where: Where = HERE,
) -> None:
    """Ask one instance to finish its work and stop (the embedded platform then starts a fresh one)."""
    with where.client() as client:
        client.platform.drain(service, instance)
        say(f"{service} {instance} was asked to drain")
        if wait:
            _until_gone(client.platform.services, service, instance, timeout)


def _until_gone(services: object, service: str, instance: str, timeout_s: float) -> None:
    import time
    from collections.abc import Callable
    from typing import cast

    from temper.client.sdk.types import Instance
    from temper.runtime.errors import Unavailable

    look = cast("Callable[[str], list[Instance]]", services)
    deadline = time.monotonic() + timeout_s
    while any(each.instance == instance for each in look(service)):
        if time.monotonic() > deadline:
            raise Unavailable(f"{instance} is still there after {timeout_s:g} s", hint="temper service list")
        time.sleep(0.5)
    say(f"{service} {instance} is gone")


def dead_list(
    *,
    after: Annotated[int, Parameter(help="Begin after this number.")] = 0,
    limit: Annotated[int, Parameter(help="Most letters, at most 500.")] = 50,
    where: Where = HERE,
    output: OutputOption = "table",
) -> None:
    """Dead letters with the reason, oldest first."""
    from temper.client.cli.output import emit

    with where.client() as client:
        emit(client.platform.dead_letters(after_seq=after, limit=limit), DEAD_COLUMNS, output)


def retry(seq: Seq, /, *, where: Where = HERE) -> None:
    """Put a dead letter back on its subject."""
    with where.client() as client:
        client.platform.retry(seq)
    say(f"dead letter {seq} was sent again")


def drop(seq: Seq, /, *, where: Where = HERE) -> None:
    """Forget a dead letter."""
    with where.client() as client:
        client.platform.drop(seq)
    say(f"dead letter {seq} was dropped")
