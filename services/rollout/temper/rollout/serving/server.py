"""The HTTP server's life: bind, serve, drain.

A stop (SIGTERM, Ctrl-C) ends the listening at once; answers under way get the drain timeout, then their requests are
cancelled and the engines closed.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from temper.runtime.errors import Rejected, Unavailable

_KEEP_ALIVE_S = 30
_BACKLOG = 512


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises ``Unavailable`` for a port that is taken, ``Rejected`` for an address that is none."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise Rejected(
            f"{host} is not an address of this machine: {error.strerror}", field="--host"
        ) from None
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise Unavailable(f"cannot listen on {host}:{port}: {error.strerror}", field="--port") from None
    listening.setblocking(False)
    return listening


def url(listening: socket.socket) -> str:
    """Address of the API."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"


async def serve(
    app: Starlette, listening: socket.socket, drain_s: float, on_ready: Callable[[], None]
) -> None:
    """Serve until a signal asks for the end."""
    config = uvicorn.Config(
        app,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, round(drain_s)),
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(
            number, _noted
        )  # the server raises what it caught once more when it is done: that is no death
    on_ready()
    await uvicorn.Server(config).serve(sockets=[listening])


def _noted(_: int, __: FrameType | None) -> None:
    """A signal that has done its work."""
