"""`temper sandbox mcp`: the tools of a sandbox for a client of the Model Context Protocol."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from temper.client.cli.broker import HERE, Broker
from temper.runtime.errors import Rejected


def mcp(
    *,
    backend: Annotated[
        str, Parameter(help="Make the sandbox here, with this backend, instead of asking a platform.")
    ] = "",
    settings: Annotated[
        tuple[str, ...], Parameter(name="--set", help="With --backend: a setting of the sandbox service.")
    ] = (),
    isolation: Annotated[
        str | None,
        Parameter(help="On a platform, least isolation: none, weak, namespace (the default), vm."),
    ] = None,
    lease: Annotated[
        float | None,
        Parameter(help="On a platform, seconds the sandbox outlives this process; 300 by default."),
    ] = None,
    wall: Annotated[
        float | None, Parameter(help="On a platform, seconds one call may take; 60 by default.")
    ] = None,
    http: Annotated[
        str | None,
        Parameter(
            help="HOST:PORT: serve over HTTP, a sandbox for each session; by default standard input and output."
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        Parameter(help="With --http: file with the token clients must show; needed beyond this machine."),
    ] = None,
    sessions: Annotated[
        int | None, Parameter(help="With --http: most sessions at once; 8 by default.")
    ] = None,
    idle: Annotated[
        float | None, Parameter(help="With --http: seconds until an idle session ends; 1800 by default.")
    ] = None,
    broker: Broker = HERE,
) -> None:
    """Serve python, shell, files and submit to clients of MCP: each session has one sandbox, which ends with it."""
    command = [sys.executable, "-m", "temper.sandbox", "mcp"]
    of_platform = {"--isolation": isolation, "--lease": lease, "--wall": wall}
    if backend:
        _refuse(of_platform, "a sandbox made here goes by the settings of the sandbox service", "use --set")
        for each in (f"backend={backend}", *settings):
            command += ["--set", each]
    else:
        _refuse({"--set": settings or None}, "a running platform has its own settings", "add --backend")
        url, bus_token_file = broker.address()
        command += ["--bus-url", url, *_given(of_platform)]
        if bus_token_file:
            command += ["--bus-token-file", str(bus_token_file)]
    command += _given({"--http": http, "--token-file": token_file, "--sessions": sessions, "--idle": idle})
    sys.stdout.flush()
    os.execv(sys.executable, command)  # noqa: S606 - our own program, in this one's place: no relay of what it says


def _given(options: Mapping[str, object]) -> list[str]:
    return [f"{name}={value}" for name, value in options.items() if value is not None]


def _refuse(options: Mapping[str, object], reason: str, hint: str) -> None:
    """An option without an effect is a mistake."""
    for name in (name for name, value in options.items() if value is not None):
        raise Rejected(reason, field=name, hint=hint)
