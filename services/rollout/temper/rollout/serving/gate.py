"""What every request passes before a route sees it: key, size, time, and how many there are at once.

Plain ASGI, so that a stream passes through untouched.
"""

from __future__ import annotations

import asyncio
import hmac
import sys
import time
from collections.abc import Mapping

from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from temper.rollout.serving.config import ServingConfig
from temper.rollout.serving.errors import RETRY_AFTER_S, body_of
from temper.rollout.serving.metrics import ServingMetrics
from temper.rollout.serving.sse import ClientGone

_PATIENCE = (
    8  # times the limit is read and dropped, so that a client that is still sending gets to read the refusal
)
OPEN_PATHS = frozenset({"/health", "/metrics"})  # probes and scrapes carry no key and are never too many


class Gate:
    """Middleware. ``token``: the API key; None for an open server."""

    def __init__(
        self,
        app: ASGIApp,
        config: ServingConfig,
        metrics: ServingMetrics,
        token: str | None,
        paths: frozenset[str],
    ) -> None:
        self._app, self._config, self._metrics = app, config, metrics
        self._token = token.encode() if token is not None else None
        self._paths = paths
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path: str = scope["path"]
        label = path if path in self._paths else "other"
        begun, status = time.perf_counter(), 499  # nginx's number for a client that left before any answer

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            if path in OPEN_PATHS:
                await self._app(scope, receive, counted)
            else:
                await self._guarded(scope, receive, counted)
        finally:
            if isinstance(sys.exc_info()[1], Exception):
                status = 500  # a bug, answered further out; a cancellation is no Exception
            self._metrics.requests.labels(label, str(status)).inc()
            self._metrics.seconds.labels(label).observe(time.perf_counter() - begun)

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value for name, value in scope["headers"]}
        if not self._knows(headers.get("authorization", b"")):
            refusal: Response = _refusal(
                401, "a valid API key is needed", "invalid_api_key", {"WWW-Authenticate": "Bearer"}
            )
            await refusal(scope, receive, send)
            return
        if self._running >= self._config.max_requests:
            again = {"Retry-After": str(RETRY_AFTER_S)}
            await _refusal(429, "too many requests at once", "too_many_requests", again)(scope, receive, send)
            return
        self._running += 1
        self._metrics.running.set(self._running)
        try:
            body = await self._body(headers, receive)
            if isinstance(body, Response):
                await body(scope, receive, send)
            else:
                await self._app(scope, _replay(body, receive), send)
        except ClientGone:
            pass  # nobody is left to answer
        finally:
            self._running -= 1
            self._metrics.running.set(self._running)

    async def _body(self, headers: Mapping[str, bytes], receive: Receive) -> bytes | Response:
        """The whole body, or what to say instead."""
        most = self._config.max_body_bytes
        too_long = _refusal(
            413, f"the body is larger than {most} bytes", "body_too_large", {"Connection": "close"}
        )
        declared = headers.get("content-length", b"")
        if declared.isdigit() and int(declared) > _PATIENCE * most:
            return too_long
        body, seen = bytearray(), 0
        try:
            async with asyncio.timeout(self._config.body_timeout_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGone
                    piece: bytes = message.get("body", b"")
                    seen += len(piece)
                    if seen <= most:
                        body += piece
                    if not message.get("more_body", False):
                        return too_long if seen > most else bytes(body)
                    if seen > _PATIENCE * most:
                        return too_long
        except TimeoutError:
            return _refusal(408, "the body did not arrive in time", "body_timeout", {"Connection": "close"})

    def _knows(self, authorization: bytes) -> bool:
        if self._token is None:
            return True
        scheme, _, key = authorization.partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(key.strip(), self._token)


def _refusal(status: int, message: str, code: str, headers: Mapping[str, str]) -> Response:
    return JSONResponse(body_of(status, message, code=code), status, headers)


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body once, then what the server has to say, which can only be that the client left."""
    given = False

    async def replayed() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed
