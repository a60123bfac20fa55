"""`python -m temper.sandbox mcp`: the standard tools over MCP, each session in a sandbox of its own.

Without `--bus-url` sandboxes are made here, by the backend that the service's own `--config` and `--set` name; with it, by
the running platform. On standard input and output there is one session, which ends with the input or at a TERM. With
`--http` there are several, each until its client ends it, until it is idle for long, or until a TERM or Ctrl-C.
"""

import argparse
import asyncio
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from importlib.util import find_spec
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
from temper.sandbox.seats import LocalSeats, RemoteSeat, Seat
from temper.sandbox.toollisten import HttpOptions, http_options, listen, url

_PREFIX: Final = "temper-mcp-"


_Serve = Callable[[Callable[[], Seat]], Awaitable[None]]
"""Serves the tools; given how to get a seat that is not entered yet."""


def _told(*numbers: signal.Signals) -> asyncio.Event:
    """Set when one of these signals comes, from now on."""
    told = asyncio.Event()
    for number in numbers:
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    return told


async def _stdio(make: Callable[[], Seat]) -> None:
    """Until standard input ends or a TERM comes, which finds a thread that reads and cannot be called back."""
    async with make() as seat:
        told = _told(signal.SIGTERM)
        talking, stopped = asyncio.create_task(_talk(seat)), asyncio.create_task(told.wait())
        await asyncio.wait({talking, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if talking.done():
            talking.result()


async def _talk(seat: Seat) -> None:
    from mcp.server.stdio import stdio_server

    from temper.sandbox.toolserver import tool_server

    server = tool_server(seat)
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


def _http(options: HttpOptions, listening: socket.socket) -> _Serve:
    """Until a TERM or Ctrl-C."""

    async def serving(make: Callable[[], Seat]) -> None:
        from temper.sandbox.toolhttp import serve
        from temper.sandbox.toolsessions import ToolSessions

        told = _told(signal.SIGTERM, signal.SIGINT)
        sessions = ToolSessions(make, options.sessions, options.idle_s)
        much = f"{options.sessions} sessions at most, each ends after {options.idle_s:g} s without a request"
        await serve(sessions, options, listening, told, lambda: _say(f"tools at {url(listening)} ({much})"))

    return serving


def _require_installed() -> None:
    missing = [name for name in ("mcp", "uvicorn") if find_spec(name) is None]
    if missing:
        raise Unavailable(f"this needs {', '.join(missing)}", hint="pip install 'temper-rl[sandbox,mcp]'")


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


async def _local(arguments: argparse.Namespace, serve: _Serve, most: int) -> None:
    reclaim_left(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as directory:
        sets = [f"state_dir={directory}", *arguments.set]
        config = load("sandbox", SandboxConfig, file=arguments.config, sets=sets)
        async with LocalSeats(config, most) as seats:
            await serve(seats.seat)


async def _remote(arguments: argparse.Namespace, serve: _Serve) -> None:
    token = arguments.bus_token_file.read_text().strip() if arguments.bus_token_file else None
    bus = NatsBus(arguments.bus_url, name="temper/mcp", credentials=Credentials(token=token))
    await bus.connect()

    def seat() -> RemoteSeat:
        return RemoteSeat(
            bus,
            SystemClock(),
            isolation=arguments.isolation,
            lease_s=arguments.lease,
            wall_s=arguments.wall,
        )

    try:
        await serve(seat)
    finally:
        await bus.close()


async def _session(arguments: argparse.Namespace, serve: _Serve, most: int) -> None:
    await (_remote(arguments, serve) if arguments.bus_url else _local(arguments, serve, most))
    sys.stderr.flush()
    os._exit(0)  # every sandbox is gone; nothing waits for a thread that may read standard input for ever


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0 at the end, 2 for an option that does not do, 3 if there is no sandbox."""
    arguments = _parser().parse_args(argv)
    try:
        options = http_options(arguments)
        listening = options and listen(options)
    except TemperError as error:
        _say(f"error: {error}")
        return 2
    setup_logging(LoggingConfig())
    serve = _http(options, listening) if options and listening else _stdio
    try:
        _require_installed()
        asyncio.run(_session(arguments, serve, options.sessions if options else 1))
    except TemperError as error:
        _say(str(error))
        return 3
    except KeyboardInterrupt:
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="temper-sandbox-mcp", description=__doc__)
    parser.add_argument("--config", type=Path, metavar="FILE")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--bus-url", default="", metavar="URL", help="broker of a running platform")
    parser.add_argument("--bus-token-file", type=Path, metavar="FILE")
    parser.add_argument("--isolation", default="namespace", help="least isolation of the platform's sandbox")
    parser.add_argument("--lease", type=float, default=300.0, metavar="S")
    parser.add_argument("--wall", type=float, default=60.0, metavar="S", help="seconds one call may take")
    parser.add_argument("--http", metavar="HOST:PORT", help="serve over HTTP instead")
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="with --http: what clients must show")
    parser.add_argument("--sessions", type=int, metavar="N", help="with --http: most sessions at once")
    parser.add_argument("--idle", type=float, metavar="S", help="with --http: seconds until an idle one ends")
    return parser


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - a command's talk


if __name__ == "__main__":
    sys.exit(main())
