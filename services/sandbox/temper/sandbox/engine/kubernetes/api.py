"""The cluster's API: objects over HTTPS, programs over WebSockets."""

import asyncio
import contextlib
import json
import os
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp

from temper.runtime.errors import Conflict, Rejected, Unavailable
from temper.sandbox.engine.command import Stream
from temper.sandbox.engine.kubernetes.resources import CONTAINER

_ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
_TIMEOUT_S: Final = 30.0
# Version 5 can tell the end of standard input; it is spoken from Kubernetes 1.31 on.
_PROTOCOL: Final = "v5.channel.k8s.io"
_PIECE: Final = 1 << 15
_STDIN, _STDOUT, _STDERR, _STATUS, _CLOSE = 0, 1, 2, 3, 255


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach the cluster; the defaults are those inside a pod. Example: `Access(namespace="sandboxes")`."""

    url: str = ""
    """The API server; empty for the one of the pod this runs in."""
    token_file: str = f"{_ACCOUNT}/token"
    """Bearer token, read again for each request since it is renewed; a missing file means none."""
    ca_file: str = f"{_ACCOUNT}/ca.crt"
    """Certificate authority; a missing file means the system's."""
    namespace: str = ""
    """Where everything is made; empty for that of the pod this runs in."""

    def base(self) -> str:
        """The API server's URL. Raises Rejected."""
        host = os.environ.get("KUBERNETES_SERVICE_HOST", "")
        if self.url or host:
            return (self.url or f"https://{host}:{os.environ.get('KUBERNETES_SERVICE_PORT', '443')}").rstrip(
                "/"
            )
        raise Rejected("no cluster: this is no pod", field="kubernetes.url", hint="name the API server")

    def room(self) -> str:
        """The namespace."""
        return self.namespace or _content(f"{_ACCOUNT}/namespace") or "default"


class Api:
    """A connection to one cluster and namespace."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._session: aiohttp.ClientSession | None = None

    async def connect(self) -> None:
        """Get ready. Raises Rejected."""
        base = self._access.base()
        context: ssl.SSLContext | bool = True
        if base.startswith("https"):
            known = self._access.ca_file if _content(self._access.ca_file) else None
            context = await asyncio.to_thread(ssl.create_default_context, cafile=known)
        self._session = aiohttp.ClientSession(base, connector=aiohttp.TCPConnector(ssl=context, limit=0))

    @property
    def session(self) -> aiohttp.ClientSession:
        """The HTTP client. Raises Unavailable before `connect`."""
        if self._session is None:
            raise Unavailable("not connected to a cluster")
        return self._session

    def _headers(self) -> dict[str, str]:
        token = _content(self._access.token_file)
        return {"Authorization": f"Bearer {token}"} if token else {}

    def path(self, api: str, kind: str, name: str = "") -> str:
        """The path of objects of a kind, such as ("v1", "pods")."""
        root = "/api/v1" if api == "v1" else f"/apis/{api}"
        return f"{root}/namespaces/{self._access.room()}/{kind}" + (f"/{name}" if name else "")

    async def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> dict[str, Any] | None:
        """One request; None where nothing is there. Raises Conflict where it is there already, Rejected, Unavailable."""
        headers = self._headers()
        if method == "PATCH":
            headers["Content-Type"] = "application/merge-patch+json"
        data = None if body is None else json.dumps(body).encode()
        headers |= {"Content-Type": "application/json"} if data is not None and method != "PATCH" else {}
        try:
            async with (
                asyncio.timeout(_TIMEOUT_S),
                self.session.request(method, path, data=data, params=query, headers=headers) as answer,
            ):
                text = await answer.text()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unavailable(f"the cluster does not answer: {error}") from error
        return _judge(answer.status, text)

    async def execute(self, pod: str, argv: Sequence[str], *, stdin: bool) -> "PodProgram":
        """Start a program in a pod. Raises Unavailable."""
        query = [("container", CONTAINER), ("stdout", "true"), ("stderr", "true")]
        query += [("stdin", "true")] if stdin else []
        query += [("command", word) for word in argv]
        path = self.path("v1", "pods", pod) + "/exec"
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                socket = await self.session.ws_connect(
                    path, params=query, protocols=(_PROTOCOL,), headers=self._headers(), max_msg_size=0
                )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unavailable(f"cannot start a program in pod {pod}: {error}") from error
        if socket.protocol != _PROTOCOL:
            await socket.close()
            raise Unavailable(f"the cluster does not speak {_PROTOCOL}", hint="it comes with Kubernetes 1.31")
        return PodProgram(socket)

    async def close(self) -> None:
        """Hang up."""
        if self._session is not None:
            await self._session.close()
            self._session = None


class PodProgram:
    """A program of a pod. Each message begins with its channel. Source: k8s.io/apimachinery, remotecommand."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self.ended: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        """Its exit status; told after its last output, so only to who reads."""

    async def read(self) -> tuple[Stream, bytes] | None:
        """The next output."""
        while not self.ended.done():
            message = await self._socket.receive()
            if message.type is not aiohttp.WSMsgType.BINARY:
                self._end(None)
            elif message.data[0] == _STATUS:
                self._end(_exit_code(message.data[1:]))
            elif message.data[0] in {_STDOUT, _STDERR} and len(message.data) > 1:
                return (Stream.STDOUT if message.data[0] == _STDOUT else Stream.STDERR), message.data[1:]
        return None

    def _end(self, status: int | None) -> None:
        if not self.ended.done():
            self.ended.set_result(status)

    async def write(self, data: bytes) -> None:
        """Standard input."""
        with contextlib.suppress(OSError, aiohttp.ClientError):
            for start in range(0, len(data), _PIECE):
                await self._socket.send_bytes(bytes([_STDIN]) + data[start : start + _PIECE])

    async def finish_input(self) -> None:
        """The end of its standard input."""
        with contextlib.suppress(OSError, aiohttp.ClientError):
            await self._socket.send_bytes(bytes([_CLOSE, _STDIN]))

    async def close(self) -> None:
        """Let go of the streams."""
        self._end(None)
        with contextlib.suppress(OSError, aiohttp.ClientError):
            await self._socket.close()


def _exit_code(text: bytes) -> int | None:
    """From the Status object that ends an exec."""
    try:
        told = json.loads(text)
        if told["status"] == "Success":
            return 0
        causes = told.get("details", {}).get("causes", [])
        return next((int(each["message"]) for each in causes if each.get("reason") == "ExitCode"), None)
    except (ValueError, KeyError, TypeError):
        return None


def _judge(status: int, text: str) -> dict[str, Any] | None:
    if status == 404:
        return None
    if status == 409:
        raise Conflict(f"the cluster has it already: {_reason(text)}")
    if status in {400, 401, 403, 422}:
        raise Rejected(f"the cluster refuses ({status}): {_reason(text)}", field="kubernetes")
    if status >= 300:
        raise Unavailable(f"the cluster answers {status}: {_reason(text)}")
    return json.loads(text)


def _reason(text: str) -> str:
    try:
        return str(json.loads(text)["message"])[:500]
    except (ValueError, KeyError, TypeError):
        return text[:200]


def _content(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
