"""`python -m temper.sandbox mcp`: the standard tools over MCP on standard input and output, in a sandbox of its own.

Without `--bus-url` the sandbox is made here, by the backend that the service's own `--config` and `--set` name; with it, by
the running platform. The sandbox ends with the session: when standard input ends, or at a TERM.
"""

import argparse
import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from temper.runtime.bus.credentials import Credentials
from temper.runtime.bus.nats import NatsBus
from temper.runtime.clock import SystemClock
from temper.runtime.config import LoggingConfig, load
from temper.runtime.errors import TemperError, Unavailable
from temper.runtime.telemetry import setup_logging
from temper.sandbox.config import SandboxConfig
from temper.sandbox.engine import records
from temper.sandbox.engine.discard import discard
from temper.sandbox.seats import LocalSeat, RemoteSeat, Seat

_PREFIX: Final = "temper-mcp-"


async def _serve(seat: Seat) -> None:
    """Until standard input ends or a TERM comes, which finds a thread that reads and cannot be called back."""
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    talking, stopped = asyncio.create_task(_talk(seat)), asyncio.create_task(told.wait())
    await asyncio.wait({talking, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if talking.done():
        talking.result()


async def _talk(seat: Seat) -> None:
    try:
        from mcp.server.stdio import stdio_server

        from temper.sandbox.toolserver import tool_server
    except ImportError as error:
        raise Unavailable(f"this needs {error.name}", hint="pip install 'temper-rl[sandbox,mcp]'") from error
    server = tool_server(seat)
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


def reclaim_left(parent: Path) -> int:
    """Remove what killed predecessors of this user left below `parent`; returns how many there were."""
    found = 0
    for left in parent.glob(f"{_PREFIX}*"):
        if left.is_symlink() or left.stat().st_uid != os.geteuid():
            continue
        if records.reclaim(left).owners:
            discard(left)
            found += 1
    return found


async def _local(arguments: argparse.Namespace) -> None:
    reclaim_left(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as directory:
        sets = [f"state_dir={directory}", *arguments.set]
        config = load("sandbox", SandboxConfig, file=arguments.config, sets=sets)
        async with LocalSeat(config) as seat:
            await _serve(seat)


async def _remote(arguments: argparse.Namespace) -> None:
    token = arguments.bus_token_file.read_text().strip() if arguments.bus_token_file else None
    bus = NatsBus(arguments.bus_url, name="temper/mcp", credentials=Credentials(token=token))
    await bus.connect()
    try:
        seat = RemoteSeat(
            bus,
            SystemClock(),
            isolation=arguments.isolation,
            lease_s=arguments.lease,
            wall_s=arguments.wall,
        )
        async with seat:
            await _serve(seat)
    finally:
        await bus.close()


async def _session(arguments: argparse.Namespace) -> None:
    await (_remote(arguments) if arguments.bus_url else _local(arguments))
    sys.stderr.flush()
    os._exit(0)  # the sandbox is gone; nothing waits for a thread that may read standard input for ever


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0 at the end of input, 2 for a setting that does not do, 3 if there is no sandbox."""
    parser = argparse.ArgumentParser(prog="temper-sandbox-mcp", description=__doc__)
    parser.add_argument("--config", type=Path, metavar="FILE")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--bus-url", default="", metavar="URL", help="broker of a running platform")
    parser.add_argument("--bus-token-file", type=Path, metavar="FILE")
    parser.add_argument("--isolation", default="namespace", help="least isolation of the platform's sandbox")
    parser.add_argument("--lease", type=float, default=300.0, metavar="S")
    parser.add_argument("--wall", type=float, default=60.0, metavar="S", help="seconds one call may take")
    arguments = parser.parse_args(argv)
    setup_logging(LoggingConfig())
    try:
        asyncio.run(_session(arguments))
    except TemperError as error:
        print(error, file=sys.stderr)  # noqa: T201 - a command's talk
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
