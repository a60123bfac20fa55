"""`temper sandbox mcp`: the tools of a sandbox for a client of the Model Context Protocol."""

from __future__ import annotations

import os
import sys
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
        str, Parameter(help="On a platform, least isolation: none, weak, namespace, vm.")
    ] = "namespace",
    lease: Annotated[
        float, Parameter(help="On a platform, seconds the sandbox outlives this process.")
    ] = 300.0,
    wall: Annotated[float, Parameter(help="On a platform, seconds one call may take.")] = 60.0,
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
    if backend:
        for each in (f"backend={backend}", *settings):
            command += ["--set", each]
    else:
        if settings:
            raise Rejected("a running platform has its own settings", field="--set", hint="add --backend")
        url, bus_token_file = broker.address()
        command += ["--bus-url", url, "--isolation", isolation, "--lease", str(lease), "--wall", str(wall)]
        if bus_token_file:
            command += ["--bus-token-file", str(bus_token_file)]
    over_http = {"--http": http, "--token-file": token_file, "--sessions": sessions, "--idle": idle}
    for option, value in over_http.items():
        if value is not None:
            command += [f"{option}={value}"]
    sys.stdout.flush()
    os.execv(sys.executable, command)  # noqa: S606 - our own program, in this one's place: no relay of what it says
