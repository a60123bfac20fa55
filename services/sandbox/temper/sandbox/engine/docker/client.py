"""The engine's API: the SDK for questions and answers, our own connections for attached streams.

The SDK hands out the socket under its HTTP reader, and with it loses what had arrived together with the response's head.
"""

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

import docker
import docker.errors
import requests

from temper.runtime.errors import Rejected, Unavailable
from temper.sandbox.engine.command import Stream

_TIMEOUT_S: Final = 120
_CONNECT_S: Final = 20.0
_POLL_S: Final = 0.1
_STREAMS: Final = {1: Stream.STDOUT, 2: Stream.STDERR}
MISSING: Final = docker.errors.NotFound
"""What the engine says of something that is not there."""


class Client:
    """One engine. `url` is unix:///path or tcp://host:port."""

    def __init__(self, url: str) -> None:
        self._url = urlsplit(url)
        if self._url.scheme not in {"unix", "tcp"}:
            raise Rejected(
                f"{url!r} is no engine", field="docker.url", hint="unix:///path or tcp://host:port"
            )
        self._text = url
        self._api: docker.APIClient | None = None

    async def connect(self) -> None:
        """Find the engine and its version. Raises Unavailable."""
        try:
            self._api = await asyncio.to_thread(
                docker.APIClient, base_url=self._text, version="auto", timeout=_TIMEOUT_S
            )
        except (docker.errors.DockerException, requests.RequestException) as error:
            raise Unavailable(
                f"no Docker engine answers at {self._text}", hint="start dockerd, or set docker.url"
            ) from error

    @property
    def api(self) -> docker.APIClient:
        """The SDK's client. Raises Unavailable before `connect`."""
        if self._api is None:
            raise Unavailable("not connected to an engine")
        return self._api

    async def call(self, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """A call of the SDK on a thread. Raises Unavailable; `MISSING` passes."""
        try:
            return await asyncio.to_thread(method, *arguments, **options)
        except docker.errors.NotFound:
            raise
        except (docker.errors.DockerException, requests.RequestException) as error:
            raise Unavailable(f"the Docker engine refused: {error}") from error

    async def attach(self, path: str, body: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """POST and take the connection over. Raises Unavailable with the engine's reason."""
        content = json.dumps(body).encode()
        head = (
            f"POST /v{self.api.api_version}{path} HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        try:
            async with asyncio.timeout(_CONNECT_S):
                reader, writer = await self._open()
                writer.write(head.encode() + content)
                answer = await reader.readuntil(b"\r\n\r\n")
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise Unavailable(f"the Docker engine did not answer: {error}") from error
        if int(answer.split(None, 2)[1]) not in {101, 200}:
            reason = await reader.read(4096)
            writer.close()
            raise Unavailable(f"the Docker engine refused: {reason.decode(errors='replace').strip()}")
        return reader, writer

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._url.scheme == "unix":
            return await asyncio.open_unix_connection(self._url.path)
        return await asyncio.open_connection(self._url.hostname, self._url.port or 2375)

    def close(self) -> None:
        """Hang up."""
        if self._api is not None:
            self._api.close()
            self._api = None


class Execution:
    """A program of a container. Source of the frames: "Attach to a container" in the Engine API."""

    def __init__(
        self, client: Client, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._client = client
        self._name = name
        self._reader = reader
        self._writer = writer
        self._silent = asyncio.Event()
        self.ended: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        """Its exit status."""
        self._waiting = asyncio.create_task(self._wait())

    async def read(self) -> tuple[Stream, bytes] | None:
        """The next output."""
        try:
            head = await self._reader.readexactly(8)
            data = await self._reader.readexactly(int.from_bytes(head[4:], "big"))
        except (asyncio.IncompleteReadError, OSError):
            self._silent.set()
            return None
        return _STREAMS.get(head[0], Stream.STDOUT), data

    async def _wait(self) -> None:
        """Its streams end with it, unless children of it hold them: so the engine is asked now and then, too."""
        status: int | None = None
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._silent.wait(), _POLL_S)
                told = await self._client.call(self._client.api.exec_inspect, self._name)
                if not told["Running"] and told["ExitCode"] is not None:
                    status = int(told["ExitCode"])
                    break
                if self._silent.is_set():
                    await asyncio.sleep(_POLL_S / 10)
        except (MISSING, Unavailable):  # the container is gone, or the engine is
            status = None
        if not self.ended.done():
            self.ended.set_result(status)

    async def write(self, data: bytes) -> None:
        """Standard input."""
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError:
            return

    async def finish_input(self) -> None:
        """The end of its standard input."""
        try:
            self._writer.write_eof()
        except OSError:
            return

    async def close(self) -> None:
        """Let go of the streams."""
        self._waiting.cancel()
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            return
