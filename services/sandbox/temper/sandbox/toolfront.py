"""The tools over HTTP, by the streamable transport of the Model Context Protocol: one path, one session per client.

    client -> who may (token, or Host and Origin) -> size and time of the body -> ToolSessions -> transport -> tool_server

Newer versions of the protocol have no sessions, so that nothing could keep a sandbox from one call to the next: they are
refused with the versions that have them, which makes a client that knows both take one of those.
"""

import asyncio
import contextlib
import hmac
from collections.abc import AsyncIterator, Iterator
from http import HTTPStatus
from typing import Final

import pydantic_core
from mcp.server.streamable_http import (
    MCP_SESSION_ID_HEADER,
    StreamableHTTPServerTransport,
    check_accept_headers,
)
from mcp.server.transport_security import (
    DEFAULT_MAX_REQUEST_BODY_SIZE,
    TransportSecurityMiddleware,
    TransportSecuritySettings,
)
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE_ERROR,
    UNSUPPORTED_PROTOCOL_VERSION,
    ErrorData,
    InitializeRequestParams,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCRequest,
    jsonrpc_message_adapter,
)
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from temper.runtime.errors import TemperError
from temper.sandbox.toolsessions import ToolSessions

PATH: Final = "/mcp"
_METHODS: Final = "POST, DELETE"
_BODY_S: Final = 30.0
"""Seconds in which a body must be there."""
_HERE: Final = ("127.0.0.1", "localhost", "[::1]")


class _Refusal(Exception):  # noqa: N818 - an answer, not a fault
    """What to say instead."""

    def __init__(self, status: int, code: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.error = ErrorData(code=code, message=message)
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    def response(self) -> Response:
        body = JSONRPCError(jsonrpc="2.0", id=None, error=self.error)
        text = body.model_dump_json(by_alias=True, exclude_unset=True)
        return Response(text, self.status, self.headers, "application/json")


class ToolFront:
    """The ASGI application. `host` is where it listens: without a token no page of a browser gets at it there."""

    def __init__(
        self, sessions: ToolSessions, token: str | None, host: str = _HERE[0], body_s: float = _BODY_S
    ) -> None:
        self._sessions = sessions
        self._token = None if token is None else token.encode()
        self._security = TransportSecurityMiddleware(_only(host) if token is None else None)
        self._body_s = body_s
        self._asked: set[tuple[str, str]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(scope, receive)
        try:
            await self._serve(request, send)
        except _Refusal as refusal:
            await refusal.response()(scope, receive, send)
        except _ClientGone:
            pass  # nobody is left to answer

    async def _serve(self, request: Request, send: Send) -> None:
        self._let_in(request)
        refused = await self._security.validate_request(request, is_post=request.method == "POST")
        if refused is not None:
            raise _Refusal(refused.status_code, INVALID_REQUEST, _why(refused.status_code))
        _require_address(request)
        name = request.headers.get(MCP_SESSION_ID_HEADER)
        transport = None if name is None else self._sessions.find(name)
        if name is not None and transport is None:
            raise _Refusal(404, INVALID_REQUEST, "no such session: it has ended, begin another by initialize")
        if request.method == "DELETE":
            await self._end(request, name, send)
            return
        body = await self._body(request)
        message = _message(body)
        if transport is None:
            _require_opening(request, message)
            await self._open(request, body, send)
            return
        with self._under_way(_name(transport), message):
            await transport.handle_request(request.scope, _replay(body, request.receive), send)

    @contextlib.contextmanager
    def _under_way(self, name: str, message: JSONRPCMessage) -> Iterator[None]:
        """Of two requests of one id the transport would answer one and leave the other waiting for ever."""
        if not isinstance(message, JSONRPCRequest):
            yield
            return
        asked = (name, str(message.id))
        if asked in self._asked:
            raise _Refusal(
                409, INVALID_REQUEST, f"a request of the id {message.id} is under way in this session"
            )
        self._asked.add(asked)
        try:
            yield
        finally:
            self._asked.discard(asked)

    def _let_in(self, request: Request) -> None:
        if self._token is None:
            return
        scheme, _, shown = request.headers.get("authorization", "").partition(" ")
        known = hmac.compare_digest(shown.strip().encode("latin-1"), self._token)
        if not (known and scheme.lower() == "bearer"):
            raise _Refusal(
                401,
                INVALID_REQUEST,
                "show the token of --token-file as Authorization: Bearer TOKEN",
                WWW_Authenticate="Bearer",
                Connection="close",
            )

    async def _body(self, request: Request) -> bytes:
        most = DEFAULT_MAX_REQUEST_BODY_SIZE
        too_long = _Refusal(413, INVALID_REQUEST, f"the body is longer than {most} bytes")
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > most:
            raise too_long
        body = bytearray()
        try:
            async with asyncio.timeout(self._body_s):
                async for piece in _pieces(request.receive):
                    body += piece
                    if len(body) > most:
                        raise too_long
        except TimeoutError:
            raise _Refusal(
                408,
                INVALID_REQUEST,
                f"the body was not there in {self._body_s:g} seconds",
                Connection="close",
            ) from None
        return bytes(body)

    async def _open(self, request: Request, body: bytes, send: Send) -> None:
        """Make a session and let its transport answer; one that its client does not come to know is ended."""
        try:
            transport = await self._sessions.begin()
        except TemperError as error:
            raise _Refusal(503, INTERNAL_ERROR, str(error)) from error
        established = False

        async def watched(message: Message) -> None:
            nonlocal established
            if message["type"] == "http.response.start":
                established = message["status"] < HTTPStatus.BAD_REQUEST
            await send(message)

        try:
            if await request.is_disconnected():
                raise _ClientGone
            await transport.handle_request(request.scope, _replay(body, request.receive), watched)
        finally:
            if not established:
                await self._sessions.end(_name(transport))

    async def _end(self, request: Request, name: str | None, send: Send) -> None:
        if name is None:
            raise _Refusal(400, INVALID_REQUEST, f"a DELETE names its session by {MCP_SESSION_ID_HEADER}")
        await self._sessions.end(name)
        await Response(status_code=204)(request.scope, request.receive, send)


class _ClientGone(Exception):  # noqa: N818 - what happened, not a fault
    """The connection has ended."""


def _only(host: str) -> TransportSecuritySettings:
    """Names of this machine, on any port: a tunnel has its own."""
    names = (*_HERE, f"[{host}]" if ":" in host else host)
    return TransportSecuritySettings(
        allowed_hosts=[form for name in names for form in (name, f"{name}:*")],
        allowed_origins=[form for name in names for form in (f"http://{name}", f"http://{name}:*")],
    )


def _why(status: int) -> str:
    """What the package's own check of a request's headers does not say: the way out."""
    if status == HTTPStatus.BAD_REQUEST:
        return "Content-Type must be application/json"
    what = "Host" if status == HTTPStatus.MISDIRECTED_REQUEST else "Origin"
    return (
        f"{what} is no name of this machine: say localhost, or what --http says, or serve with --token-file"
    )


def _name(transport: StreamableHTTPServerTransport) -> str:
    return transport.mcp_session_id or ""


def _require_address(request: Request) -> None:
    """The path, the method and the version, before anything else is looked at."""
    if request.url.path != PATH:
        raise _Refusal(404, INVALID_REQUEST, f"nothing here: the tools are at {PATH}")
    if request.method not in {"POST", "DELETE"}:
        # A stream for messages of the server's own would carry none, and keep an idle session open.
        raise _Refusal(405, INVALID_REQUEST, f"this server takes {_METHODS}", Allow=_METHODS)
    version = request.headers.get(MCP_PROTOCOL_VERSION_HEADER)
    if version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS:
        message = f"version {version!r} has no sessions here; take one that begins by initialize"
        refusal = _Refusal(400, UNSUPPORTED_PROTOCOL_VERSION, message)
        refusal.error.data = {"supported": list(HANDSHAKE_PROTOCOL_VERSIONS), "requested": version}
        raise refusal


def _message(body: bytes) -> JSONRPCMessage:
    try:
        return jsonrpc_message_adapter.validate_python(pydantic_core.from_json(body), by_name=False)
    except ValidationError:
        raise _Refusal(400, INVALID_REQUEST, "the body is no JSON-RPC message") from None
    except ValueError as error:
        raise _Refusal(400, PARSE_ERROR, f"the body is no JSON: {error}") from None


def _require_opening(request: Request, message: JSONRPCMessage) -> None:
    """Only a sound initialize begins a session: anything else costs no sandbox."""
    if not all(check_accept_headers(request)):
        raise _Refusal(406, INVALID_REQUEST, "accept both application/json and text/event-stream")
    if not isinstance(message, JSONRPCRequest) or message.method != "initialize":
        raise _Refusal(
            400, INVALID_REQUEST, f"no {MCP_SESSION_ID_HEADER}: a session begins by the request initialize"
        )
    try:
        InitializeRequestParams.model_validate(message.params or {}, by_name=False)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise _Refusal(400, INVALID_PARAMS, f"params.{where} of initialize: {first['msg']}") from None


async def _pieces(receive: Receive) -> AsyncIterator[bytes]:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _ClientGone
        yield message.get("body", b"")
        if not message.get("more_body", False):
            return


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
