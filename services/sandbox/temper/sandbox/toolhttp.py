"""The HTTP server that the tools are served by: its bounds, its start, its end.

A stop ends the sessions first, so that what is under way is answered, then the connections.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from temper.sandbox.toolfront import ToolFront
from temper.sandbox.toollisten import HttpOptions
from temper.sandbox.toolsessions import ToolSessions

_REQUEST_S: Final = 30.0
"""Seconds in which a new connection must have asked for something."""
_CONNECTIONS: Final = (64, 16)
"""Most connections: so many, and so many more for each session."""
_LEAVE_S: Final = 5
"""Seconds that answers under way get after every session has ended."""


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals belong to the command."""
        yield


class _Prompt(H11Protocol):
    """Closes a connection that asks for nothing in time; uvicorn itself waits for ever."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self.loop.call_later(_REQUEST_S, self._require_request)

    def _require_request(self) -> None:
        if self.cycle is None:  # pyright: ignore[reportUnnecessaryComparison]  - uvicorn's own None to begin with
            self.transport.close()


async def serve(
    sessions: ToolSessions,
    options: HttpOptions,
    listening: socket.socket,
    told: asyncio.Event,
    ready: Callable[[], None],
) -> None:
    """Serve on `listening` until `told`, then end every session; `ready` is called when clients may come."""
    config = uvicorn.Config(
        ToolFront(sessions, options.token, options.host),
        http=_Prompt,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=_CONNECTIONS[0] + _CONNECTIONS[1] * options.sessions,
        timeout_graceful_shutdown=_LEAVE_S,
    )
    server = _Server(config)
    serving, stopped = asyncio.create_task(server.serve([listening])), asyncio.create_task(told.wait())
    ready()
    try:
        await asyncio.wait({serving, stopped}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        await sessions.close()
        server.should_exit = True
        await serving
