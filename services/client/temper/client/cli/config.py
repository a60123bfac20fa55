"""`temper config show`, `temper serve`, `temper topology`: services and broker seen from outside."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from temper.client.cli.exits import FAILED, OK, say
from temper.client.cli.options import DEFAULT_DATA_DIR, DataDirOption, Output, OutputOption

ServiceName = Annotated[str, Parameter(help="scheduler, rollout, trainer, sandbox, qa or telemetry.")]
ConfigOption = Annotated[Path | None, Parameter(name="--config", help="TOML file on top of the defaults.")]
SetOption = Annotated[tuple[str, ...], Parameter(name="--set", help="One value: bus.url=nats://host:4222.")]
BrokerOption = Annotated[
    str | None, Parameter(name="--broker", help="NATS server; left out: the one of --data-dir.")
]
BrokerTokenOption = Annotated[Path | None, Parameter(name="--broker-token-file", help="File with its token.")]


def register(app: App) -> None:
    """Add the commands."""
    config = App(name="config", help="Settings of services.")
    config.command(show)
    topology = App(name="topology", help="Streams, consumers and buckets of a broker.")
    topology.command(apply)
    topology.command(diff)
    app.command(config)
    app.command(topology)
    app.command(serve)


def show(
    service: ServiceName,
    /,
    *,
    config: ConfigOption = None,
    set_: SetOption = (),
    output: OutputOption = "table",
) -> int:
    """Every setting of a service in effect, and where its value comes from."""
    import json
    import subprocess

    from temper.client.cli.output import emit

    command = [*_command(service, config, set_), "--show-config", "--output", "json"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603 - our own command line
    if done.returncode:
        say(done.stderr.strip())
        return done.returncode
    emit(json.loads(done.stdout), ("key", "value", "source"), output)
    return OK


def serve(
    service: ServiceName,
    /,
    *,
    model: Annotated[
        Path | None,
        Parameter(name="--model", help="rollout only: serve this Hugging Face directory over HTTP, alone."),
    ] = None,
    host: Annotated[str | None, Parameter(name="--host", help="With --model: interface.")] = None,
    port: Annotated[
        int | None, Parameter(name="--port", help="With --model: port; 0 takes a free one.")
    ] = None,
    engine: Annotated[str | None, Parameter(name="--engine", help="With --model: inference engine.")] = None,
    replicas: Annotated[int | None, Parameter(name="--replicas", help="With --model: engines.")] = None,
    config: ConfigOption = None,
    set_: SetOption = (),
) -> None:
    """Become one service in the foreground, as a container does.

    `temper serve rollout --model DIR` needs no platform: it answers OpenAI's clients, and ids in, ids out.
    """
    import os

    options = {
        "serving.host": host, "serving.port": port, "engine.name": engine, "serving.replicas": replicas,
    }  # fmt: skip
    given = tuple(f"{key}={value}" for key, value in options.items() if value is not None)
    _require_model(service, model, given)
    command = _command(service, config, (*given, *set_))
    if model is not None:
        command[2:3] = [f"temper.{service}.serving", "--model", str(model)]
    os.execv(command[0], command)  # noqa: S606 - the same process, so that signals reach the service itself


def _require_model(service: str, model: Path | None, given: tuple[str, ...]) -> None:
    from temper.runtime.errors import Rejected

    if model is not None and service != "rollout":
        raise Rejected(f"{service} serves no model", field="--model", hint="temper serve rollout --model DIR")
    if model is None and given:
        raise Rejected(
            "--host, --port, --engine and --replicas belong to --model", field="--model", hint="or use --set"
        )


def apply(
    *,
    broker: BrokerOption = None,
    broker_token_file: BrokerTokenOption = None,
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    output: OutputOption = "table",
) -> int:
    """Create or change what differs from the contract's topology."""
    _emit_changes(_administer("apply", broker, broker_token_file, data_dir), output)
    return OK


def diff(
    *,
    broker: BrokerOption = None,
    broker_token_file: BrokerTokenOption = None,
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    output: OutputOption = "table",
) -> int:
    """Where the broker differs from the contract's topology; exit 1 if it does."""
    changes = _administer("diff", broker, broker_token_file, data_dir)
    _emit_changes(changes, output)
    return FAILED if changes else OK


def _emit_changes(changes: list[str], output: Output) -> None:
    from temper.client.cli.output import emit

    emit([{"difference": each} for each in changes], ("difference",), output)


def _administer(what: str, broker: str | None, token_file: Path | None, data_dir: Path) -> list[str]:
    import asyncio

    from temper.runtime import topology
    from temper.runtime.config import BusConfig
    from temper.runtime.connections import open_bus

    url, token = (broker, token_file) if broker else _embedded_broker(data_dir)

    async def work() -> list[str]:
        bus = open_bus(BusConfig(url=url, token_file=token), source="client/topology")
        async with asyncio.timeout(30):
            await bus.connect()
        try:
            return await getattr(topology, what)(bus)
        finally:
            await bus.close()

    return asyncio.run(work())


def _embedded_broker(data_dir: Path) -> tuple[str, Path]:
    from temper.client.sdk.target import embedded, read_platform_file

    embedded(data_dir)  # says so if none runs there
    state = read_platform_file(data_dir) or {}
    return state["broker"], Path(state["broker_token_file"])


def _command(service: str, config: Path | None, sets: tuple[str, ...]) -> list[str]:
    import sys

    from temper.client.jobfile.problems import nearest
    from temper.client.platform.services import NAMES, SERVICES, require_installed
    from temper.runtime.errors import Rejected

    if service not in NAMES:
        raise Rejected(f"there is no service {service!r}", field="service", hint=nearest(service, NAMES))
    require_installed(tuple(each for each in SERVICES if each.name == service))
    command = [sys.executable, "-m", f"temper.{service}"]
    if config is not None:
        command += ["--config", str(config)]
    for assignment in sets:
        command += ["--set", assignment]
    return command
