"""Sessions of the tools over HTTP: each has a sandbox of its own, made before its first answer, destroyed at its end.

    begin -> (seat entered) -> transport serves -> DELETE, idle or stop -> (seat left) -> forgotten

A session counts until its sandbox is gone, so there are never more sandboxes than sessions allowed.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from mcp.server.runner import serve_loop
from mcp.server.streamable_http import StreamableHTTPServerTransport

from temper.runtime.errors import Exhausted, TemperError, Unavailable
from temper.runtime.telemetry import get_logger
from temper.sandbox.seats import Seat
from temper.sandbox.toolserver import tool_server

_log = get_logger()
_END_S: Final = 45.0
"""Longest wait for the end of a session: longer than a platform takes to say that it gives no sandbox."""
_SHOWN: Final = 8
"""Letters of a session's id in the log: who knows all of it can use the session."""


@dataclass(frozen=True, slots=True)
class _Session:
    transport: StreamableHTTPServerTransport
    life: asyncio.Task[None]


class ToolSessions:
    """See the module. `make` gives a seat that is not entered yet; `idle_s` is in seconds."""

    def __init__(self, make: Callable[[], Seat], most: int, idle_s: float) -> None:
        self._make = make
        self._most = most
        self._idle_s = idle_s
        self._sessions: dict[str, _Session] = {}
        self._stopping = False

    def __len__(self) -> int:
        return len(self._sessions)

    async def begin(self) -> StreamableHTTPServerTransport:
        """A new session with its sandbox. Raises Exhausted, and what the seat raises."""
        if self._stopping:
            raise Unavailable("this server is stopping")
        if len(self._sessions) >= self._most:
            raise Exhausted(
                f"{self._most} sessions are open, as many as --sessions allows",
                hint=f"end one by DELETE, or wait: an idle one ends after {self._idle_s:g} seconds",
            )
        name = secrets.token_hex(16)
        transport = StreamableHTTPServerTransport(name, idle_timeout=self._idle_s)
        begun = asyncio.Event()
        life = asyncio.create_task(self._live(transport, begun))
        self._sessions[name] = _Session(transport, life)
        life.add_done_callback(lambda done: self._over(name, done))
        waiting = asyncio.create_task(begun.wait())
        try:
            await asyncio.wait({life, waiting}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if life.done():
            life.result()
            raise Unavailable("this server is stopping")
        return transport

    def find(self, name: str) -> StreamableHTTPServerTransport | None:
        """The transport of an open session."""
        session = self._sessions.get(name)
        return None if session is None or session.transport.is_terminated else session.transport

    async def end(self, name: str) -> None:
        """End a session and wait until its sandbox is gone. Idempotent."""
        session = self._sessions.get(name)
        if session is not None:
            await session.transport.terminate()
            await asyncio.wait({session.life}, timeout=_END_S)

    async def close(self) -> None:
        """Begin no more, and end every session; one that does not end in time is cancelled."""
        self._stopping = True
        lives = {session.life for session in self._sessions.values()}
        await asyncio.gather(*(self.end(name) for name in list(self._sessions)))
        for life in lives:
            life.cancel()
        await asyncio.gather(*lives, return_exceptions=True)

    async def _live(self, transport: StreamableHTTPServerTransport, begun: asyncio.Event) -> None:
        async with self._make() as seat:
            if transport.is_terminated:  # the server was told to stop while the sandbox was being made
                return
            server = tool_server(seat)
            async with transport.connect() as (incoming, outgoing):
                begun.set()
                with transport.idle_scope or contextlib.nullcontext():
                    await serve_loop(
                        server, incoming, outgoing, lifespan_state={}, session_id=transport.mcp_session_id
                    )
                await transport.terminate()

    def _over(self, name: str, life: asyncio.Task[None]) -> None:
        del self._sessions[name]
        error = None if life.cancelled() else life.exception()
        if isinstance(error, TemperError):
            _log.warning("mcp.session.failed", session=name[:_SHOWN], reason=str(error))
        elif error is not None:
            _log.error("mcp.session.broken", session=name[:_SHOWN], exc_info=error)
