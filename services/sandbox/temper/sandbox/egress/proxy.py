"""The proxy of one sandbox: HTTP and CONNECT in, connections to allowed names out.

    request -> policy (name) -> person, if the rule says so -> look-up -> policy (each address) -> connect to that address

It listens on a socket that lies in the sandbox's own network namespace, so nobody else can talk to it. Names are looked
up here and never inside. The address that was checked is the one that is connected to: a second look-up could say
something else. In a tunnel the name that TLS announces must be the one that was asked for.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from temper.runtime.errors import Unavailable
from temper.sandbox.egress import head as heads
from temper.sandbox.egress.policy import Mode, Network, Policy, decide, normal, reachable
from temper.sandbox.egress.secrets import Secret

_HEAD_S: Final = 30.0
_CONNECT_S: Final = 15.0
_IDLE_S: Final = 300.0
_CHUNK: Final = 1 << 16
_MOST: Final = 64
"""Connections of one sandbox at a time."""

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
Approve = Callable[[str, int], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A connection that did not come to be. Example: `Refusal("example.com", 443, "not_allowed", 3)`."""

    host: str
    """Name asked for."""
    port: int
    """Port asked for."""
    reason: str
    """As in `EgressAttempt.reason`."""
    version: int
    """Of the policy that refused it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the operator decides. Example: `Settings(internal=(IPv4Network("10.1.0.0/16"),))`."""

    internal: tuple[Network, ...] = ()
    """Networks that allowed names may lead into although they are not public."""
    secrets: Mapping[str, Secret] = field(default_factory=dict[str, Secret])
    """By name."""
    tls: ssl.SSLContext | None = None
    """For the proxy's own TLS; the system's authorities by default."""


class Refused(Exception):  # noqa: N818 - what happened to a request
    """Ends one request with a status; told to the sandbox."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


async def look_up(host: str, port: int) -> Sequence[str]:
    """Addresses of a name by the host's resolver. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class Proxy:
    """See the module. `refused` is told of every refusal; `approve` asks a person."""

    def __init__(
        self,
        policy: Policy,
        settings: Settings,
        *,
        refused: Callable[[Refusal], None],
        approve: Approve,
        resolve: Resolve = look_up,
    ) -> None:
        self._policy = policy
        self._settings = settings
        self._refused = refused
        self._approve = approve
        self._resolve = resolve
        self._server: asyncio.Server | None = None
        self._life: object | None = None
        self._open: dict[asyncio.Task[None], tuple[str, int]] = {}

    @property
    def policy(self) -> Policy:
        """The present one."""
        return self._policy

    def change(self, policy: Policy) -> None:
        """Put another policy in force at once: connections that it does not allow end."""
        self._policy = policy
        for task, (host, port) in list(self._open.items()):
            if host and not decide(policy, host, port).allowed:
                task.cancel()

    async def start(self, listener: socket.socket) -> None:
        """Serve on a socket that listens; takes it over."""
        listener.setblocking(False)
        self._life = life = object()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if self._life is life:  # one that was accepted in the moment of closing is not served
                await self._serve(reader, writer)
            else:
                writer.close()

        self._server = await asyncio.start_server(serve, sock=listener, limit=heads.MAX_HEAD)

    async def close(self) -> None:
        """End every connection and stop listening."""
        self._life = None
        if self._server is not None:
            self._server.close()
        tasks = list(self._open)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._open) >= _MOST:
            await _hang_up(writer)
            return
        self._open[task] = ("", 0)
        try:
            await self._answer(task, reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            pass  # either side went away, or said nothing: there is nobody to tell
        except asyncio.CancelledError:
            pass  # the policy changed, or the sandbox is gone
        finally:
            del self._open[task]
            await _hang_up(writer)

    async def _answer(
        self, task: asyncio.Task[None], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        host, port = "", 0
        try:
            async with asyncio.timeout(_HEAD_S):
                raw = await reader.readuntil(b"\r\n\r\n")
            head = heads.read(raw)
            host, port = head.host[:253], head.port
            await self._pass(task, head, reader, writer)
        except heads.BadRequest as error:
            self._refuse(host, port, "malformed")
            await _say(writer, "400 Bad Request", str(error))
        except _Mismatch as error:  # the tunnel stands already: there is no place for words in it
            self._refuse(error.announced[:253], port, error.reason)
        except Refused as error:
            self._refuse(host, port, error.reason)
            await _say(writer, error.status, f"temper: {host}:{port}: {error.reason}")

    def _refuse(self, host: str, port: int, reason: str) -> None:
        self._refused(Refusal(host, port, reason, self._policy.version))

    async def _pass(
        self,
        task: asyncio.Task[None],
        head: heads.Head,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        decision = decide(self._policy, head.host, head.port)
        if not decision.allowed:
            raise Refused("403 Forbidden", decision.reason)
        name = normal(head.host) or head.host
        self._open[task] = (name, head.port)  # before anybody is asked: a policy may change while they think
        if (
            decision.rule is not None
            and decision.rule.approve
            and not await self._approve(head.host, head.port)
        ):
            raise Refused("403 Forbidden", "denied")
        secret = self._settings.secrets.get(decision.rule.secret) if decision.rule else None
        injected = _injected(secret) if not head.tunnel else None
        upstream_reader, upstream = await self._connect(name, head)
        try:
            if head.tunnel:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                await self._tunnel(name, (reader, writer), (upstream_reader, upstream))
            else:
                upstream.write(head.forward(injected))
                await self._exchange(head, (reader, writer), (upstream_reader, upstream))
        finally:
            await _hang_up(upstream)

    async def _connect(
        self, name: str, head: heads.Head
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """To an address that was checked. No second look-up happens."""
        try:
            async with asyncio.timeout(_CONNECT_S):
                addresses = await self._resolve(name, head.port)
        except (OSError, TimeoutError, UnicodeError):
            raise Refused("502 Bad Gateway", "unresolved") from None
        good = [address for address in addresses if reachable(address, self._settings.internal)]
        if not good:
            raise Refused("403 Forbidden", "private_address" if addresses else "unresolved")
        tls = (self._settings.tls or ssl.create_default_context()) if head.tls else None
        for address in good:
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(_CONNECT_S):
                    return await asyncio.open_connection(
                        address, head.port, ssl=tls, server_hostname=name if tls else None
                    )
        raise Refused("502 Bad Gateway", "unreachable")

    async def _exchange(self, head: heads.Head, client: "Ends", server: "Ends") -> None:
        """One request and its answer; what the client says after its body goes nowhere."""
        sending = asyncio.ensure_future(_send_body(head, client[0], server[1]))
        try:
            await _copy(server[0], client[1])
        finally:
            sending.cancel()
            await asyncio.wait([sending])
            if not sending.cancelled():
                sending.exception()  # a body that ends badly ends the request, whose answer has come or not

    async def _tunnel(self, name: str, client: "Ends", server: "Ends") -> None:
        first = await _first_record(client[0])
        if heads.hides_name(first) and self._policy.mode is not Mode.OPEN:
            raise _Mismatch("")
        announced = heads.server_name(first)
        if announced is not None and normal(announced) != name and self._policy.mode is not Mode.OPEN:
            raise _Mismatch(announced)
        server[1].write(first)
        there = asyncio.ensure_future(_copy(client[0], server[1]))
        back = asyncio.ensure_future(_copy(server[0], client[1]))
        try:
            await asyncio.gather(there, back)
        finally:
            for task in (there, back):
                task.cancel()
            await asyncio.wait([there, back])


Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Mismatch(Refused):
    """TLS announced a name that was not asked for: the front of one site used to reach another."""

    def __init__(self, announced: str) -> None:
        super().__init__("403 Forbidden", "not_allowed")
        self.announced = announced


def _injected(secret: Secret | None) -> tuple[bytes, bytes] | None:
    if secret is None:
        return None
    try:
        return secret.header.encode("ascii"), secret.value()
    except Unavailable:
        raise Refused("502 Bad Gateway", "unreachable") from None


async def _first_record(reader: asyncio.StreamReader) -> bytes:
    """The first TLS record, whole; or what came first of anything else."""
    async with asyncio.timeout(_IDLE_S):
        data = await reader.read(_CHUNK)
        while data[:1] == b"\x16" and len(data) < 5 + (
            int.from_bytes(data[3:5], "big") if len(data) >= 5 else 1
        ):
            more = await reader.read(_CHUNK)
            if not more:
                break
            data += more
    return data


async def _send_body(head: heads.Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Exactly the body: a second request must not ride along to the same server."""
    if not head.chunked:
        await _send_exactly(head.length, reader, writer)
        return
    while True:
        line = await reader.readuntil(b"\r\n")
        size = _chunk_size(line)
        writer.write(f"{size:x}\r\n".encode())
        if size == 0:
            break
        await _send_exactly(size, reader, writer)
        if await reader.readexactly(2) != b"\r\n":
            raise heads.BadRequest("a chunk has no end")
        writer.write(b"\r\n")
    writer.write(b"\r\n")  # trailers end here
    await writer.drain()


def _chunk_size(line: bytes) -> int:
    digits = line.rstrip(b"\r\n").partition(b";")[0].strip()
    try:
        size = int(digits, 16) if digits.isalnum() and len(digits) <= 8 else -1
    except ValueError:
        size = -1
    if size < 0:
        raise heads.BadRequest("a chunk has no size")
    return size


async def _send_exactly(count: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while count > 0:
        data = await reader.read(min(count, _CHUNK))
        if not data:
            return
        count -= len(data)
        writer.write(data)
        await writer.drain()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until its end; a slow reader holds the other side back."""
    while True:
        async with asyncio.timeout(_IDLE_S):
            data = await reader.read(_CHUNK)
            if not data:
                break
            writer.write(data)
            await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def _say(writer: asyncio.StreamWriter, status: str, text: str) -> None:
    body = text.encode("ascii", "replace") + b"\n"
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    with contextlib.suppress(OSError):
        writer.write(head.encode() + body)
        await writer.drain()


async def _hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError, asyncio.CancelledError, TimeoutError):
        await asyncio.wait_for(writer.wait_closed(), 1.0)
