"""`temper sandbox mcp`: the tools of a sandbox for a client of the Model Context Protocol."""

from __future__ import annotations

import os
import sys
from typing import Annotated

from cyclopts import Parameter

from temper.client.cli.broker import HERE, Broker


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
    broker: Broker = HERE,
) -> None:
    """Serve python, shell, files and submit over standard input and output, in one sandbox that ends with the session."""
    command = [sys.executable, "-m", "temper.sandbox", "mcp"]
    if backend:
        for each in (f"backend={backend}", *settings):
            command += ["--set", each]
    else:
        url, token_file = broker.address()
        command += ["--bus-url", url, "--isolation", isolation, "--lease", str(lease), "--wall", str(wall)]
        if token_file:
            command += ["--bus-token-file", str(token_file)]
    sys.stdout.flush()
    os.execv(sys.executable, command)  # noqa: S606 - our own program, in this one's place: no relay of what it says
