"""The proxy against real servers on this machine's loopback, which the operator's settings name as internal."""

import asyncio
import ipaddress
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from temper.sandbox.egress.policy import Mode, Policy, Rule
from temper.sandbox.egress.proxy import Proxy, Refusal, Settings
from temper.sandbox.egress.secrets import Secret

LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"),)


class Origin:
    """A server that keeps what it was sent and answers with its length."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.connections = 0
        self.port = 0
        self._server: asyncio.Server | None = None

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            data = await reader.readuntil(b"\r\n\r\n")
            if b"chunked" in data:
                data += await reader.readuntil(b"0\r\n\r\n")
            elif b"Content-Length: 5" in data:
                data += await reader.readexactly(5)
            self.seen.append(data)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
            await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()


class Bench:
    """A proxy on a socket, its server, and what it refused."""

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.refused: list[Refusal] = []
        self.asked: list[str] = []
        self.answers: dict[str, list[Sequence[str]]] = {}
        self.approved: list[tuple[str, int]] = []
        self.say_yes = True
        self.proxy: Proxy | None = None
        self.port = 0

    async def start(self, policy: Policy, **settings: Any) -> None:
        self.proxy = Proxy(
            policy,
            replace(Settings(internal=LOOPBACK), **settings),
            refused=self.refused.append,
            approve=self._approve,
            resolve=self._resolve,
        )
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        await self.proxy.start(listener)

    async def _resolve(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        answers = self.answers.get(host, [["127.0.0.1"]])
        return answers.pop(0) if len(answers) > 1 else answers[0]

    async def _approve(self, host: str, port: int) -> bool:
        self.approved.append((host, port))
        return self.say_yes

    async def say(self, data: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(data)
            async with asyncio.timeout(20):
                return await reader.read()
        finally:
            writer.close()

    async def get(self, host: str, *headers: bytes, path: str = "/") -> bytes:
        target = f"http://{host}:{self.origin.port}{path}"
        lines = [f"GET {target} HTTP/1.1".encode(), b"Host: x", *headers, b"", b""]
        return await self.say(b"\r\n".join(lines))

    def rule(self, host: str, **more: Any) -> Rule:
        return Rule(host, (self.origin.port,), **more)

    async def close(self) -> None:
        if self.proxy is not None:
            await self.proxy.close()


@pytest_asyncio.fixture
async def bench() -> AsyncIterator[Bench]:
    origin = Origin()
    await origin.start()
    made = Bench(origin)
    yield made
    await made.close()
    await origin.stop()


async def test_an_allowed_name_is_reached(bench: Bench) -> None:
    await bench.start(Policy(Mode.ALLOW, (bench.rule("good.example"),)))
    assert (await bench.get("good.example", path="/a?b=1")).endswith(b"hi")
    (seen,) = bench.origin.seen
    assert seen.startswith(f"GET /a?b=1 HTTP/1.1\r\nHost: good.example:{bench.origin.port}\r\n".encode())
    assert bench.refused == []


async def test_a_name_outside_the_list_is_not_even_looked_up(bench: Bench) -> None:
    await bench.start(Policy(Mode.ALLOW, (bench.rule("good.example"),), version=4))
    assert b"403 Forbidden" in await bench.get("secret-data.evil.example")
    assert bench.asked == []
    assert bench.refused == [Refusal("secret-data.evil.example", bench.origin.port, "not_allowed", 4)]


async def test_a_name_that_leads_inside_is_refused_after_the_look_up(bench: Bench) -> None:
    bench.answers["good.example"] = [["127.0.0.1", "169.254.169.254"]]
    await bench.start(Policy(Mode.OPEN), internal=())
    assert b"403 Forbidden" in await bench.get("good.example")
    assert [each.reason for each in bench.refused] == ["private_address"]
    assert bench.origin.connections == 0


async def test_the_address_that_was_checked_is_the_one_that_is_used(bench: Bench) -> None:
    """A name that says something public first and the loopback when asked again (DNS rebinding)."""
    bench.answers["rebind.example"] = [["10.255.255.1"], ["127.0.0.1"]]
    await bench.start(Policy(Mode.ALLOW, (bench.rule("rebind.example"),)))
    assert b"private_address" in await bench.get("rebind.example")
    assert bench.asked == ["rebind.example"]
    assert bench.origin.connections == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1", "2130706433", "0x7f000001", "localhost"])
async def test_no_spelling_of_the_loopback_is_reached(bench: Bench, host: str) -> None:
    await bench.start(Policy(Mode.OPEN), internal=())
    assert b"40" in (await bench.get(host))[:12]
    assert bench.origin.connections == 0
    assert len(bench.refused) == 1


async def test_a_tunnel_passes_bytes_both_ways(bench: Bench) -> None:
    await bench.start(Policy(Mode.ALLOW, (bench.rule("good.example"),)))
    connect = f"CONNECT good.example:{bench.origin.port} HTTP/1.1\r\n\r\n".encode()
    reply = await bench.say(connect + b"GET / HTTP/1.1\r\n\r\n")
    assert reply.startswith(b"HTTP/1.1 200 Connection established\r\n\r\n")
    assert reply.endswith(b"hi")
    refused = await bench.say(f"CONNECT evil.example:{bench.origin.port} HTTP/1.1\r\n\r\n".encode())
    assert b"403" in refused
    assert bench.asked == ["good.example"]


def hello(name: str) -> bytes:
    """The first record of a TLS client that asks for `name`."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    client = context.wrap_bio(incoming, outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


async def test_the_front_of_one_site_does_not_lead_to_another(bench: Bench) -> None:
    await bench.start(Policy(Mode.ALLOW, (bench.rule("good.example"),)))
    connect = f"CONNECT good.example:{bench.origin.port} HTTP/1.1\r\n\r\n".encode()
    await bench.say(connect + hello("evil.example"))
    assert [(each.host, each.reason) for each in bench.refused] == [("evil.example", "not_allowed")]
    assert bench.origin.seen == []
    await bench.say(connect + hello("good.example") + b"\r\n\r\n")
    assert len(bench.origin.seen) == 1


async def test_a_second_request_does_not_ride_along(bench: Bench) -> None:
    await bench.start(Policy(Mode.ALLOW, (bench.rule("good.example"),)))
    body = b"12345GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n"
    target = f"http://good.example:{bench.origin.port}/".encode()
    await bench.say(b"POST " + target + b" HTTP/1.1\r\nContent-Length: 5\r\n\r\n" + body)
    (seen,) = bench.origin.seen
    assert seen.endswith(b"\r\n\r\n12345")


async def test_a_chunked_body_is_passed_on_chunk_by_chunk(bench: Bench) -> None:
    await bench.start(Policy(Mode.ALLOW, (bench.rule("good.example"),)))
    target = f"http://good.example:{bench.origin.port}/".encode()
    chunks = b"3;x=y\r\nabc\r\n0\r\nTrailer: 1\r\n\r\n"
    reply = await bench.say(b"POST " + target + b" HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks)
    assert reply.endswith(b"hi")
    assert bench.origin.seen[0].endswith(b"\r\n\r\n3\r\nabc\r\n0\r\n\r\n")


async def test_a_secret_is_put_in_outside_and_replaces_what_was_sent(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("s3cret")
    secret = Secret("Authorization", tmp_path / "key", ("good.example",), "Bearer ")
    rules = (bench.rule("good.example", secret="api"), bench.rule("other.example"))
    await bench.start(Policy(Mode.ALLOW, rules), secrets={"api": secret})
    reply = await bench.get("good.example", b"Authorization: Bearer guess")
    await bench.get("other.example")
    assert b"Authorization: Bearer s3cret\r\n" in bench.origin.seen[0]
    assert b"guess" not in bench.origin.seen[0]
    assert b"s3cret" not in bench.origin.seen[1] + reply


def certificate(directory: Path) -> tuple[Path, Path]:
    key, cert = directory / "key.pem", directory / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=api.example", "-addext", "subjectAltName=DNS:api.example"]
    out = ["-keyout", str(key), "-out", str(cert)]
    try:
        subprocess.run([*command, *names, *out], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs openssl to make a certificate")
    return key, cert


async def test_behind_a_base_url_the_proxy_speaks_tls_and_puts_the_secret_in(tmp_path: Path) -> None:
    key, cert = certificate(tmp_path)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(cert, key)
    origin = Origin()
    await origin.start(serving)
    bench = Bench(origin)
    (tmp_path / "secret").write_text("s3cret")
    secret = Secret("X-Key", tmp_path / "secret", ("api.example",))
    rules = (bench.rule("api.example", secret="api"), bench.rule("wrong.example"))
    trusted = ssl.create_default_context(cafile=str(cert))
    await bench.start(Policy(Mode.ALLOW, rules), secrets={"api": secret}, tls=trusted)
    try:
        reply = await bench.say(f"GET /tls/api.example:{origin.port}/v1 HTTP/1.1\r\n\r\n".encode())
        assert reply.endswith(b"hi")
        assert origin.seen[0].startswith(b"GET /v1 HTTP/1.1\r\nHost: api.example")
        assert b"X-Key: s3cret" in origin.seen[0]
        refused = await bench.say(f"GET /tls/wrong.example:{origin.port}/ HTTP/1.1\r\n\r\n".encode())
        assert b"502" in refused  # its certificate is for another name
    finally:
        await bench.close()
        await origin.stop()


async def test_a_policy_is_changed_live_and_ends_what_it_no_longer_allows(bench: Bench) -> None:
    await bench.start(Policy(Mode.ALLOW, (bench.rule("good.example"),)))
    reader, writer = await asyncio.open_connection("127.0.0.1", bench.port)
    writer.write(f"CONNECT good.example:{bench.origin.port} HTTP/1.1\r\n\r\n".encode())
    await reader.readuntil(b"\r\n\r\n")
    assert bench.proxy is not None
    bench.proxy.change(Policy(Mode.ALLOW, (bench.rule("next.example"),), version=2))
    async with asyncio.timeout(20):
        assert await reader.read() == b""  # the tunnel is closed
    writer.close()
    assert b"403" in await bench.get("good.example")
    assert (await bench.get("next.example")).endswith(b"hi")
    assert bench.refused[-1].version == 2


@pytest.mark.parametrize("yes", [True, False])
async def test_a_rule_that_asks_a_person_waits_for_the_answer(bench: Bench, yes: bool) -> None:
    bench.say_yes = yes
    await bench.start(Policy(Mode.ALLOW, (bench.rule("good.example", approve=True),)))
    reply = await bench.get("good.example")
    assert reply.endswith(b"hi") is yes
    assert bench.approved == [("good.example", bench.origin.port)]
    assert bench.origin.connections == int(yes)
    assert [each.reason for each in bench.refused] == ([] if yes else ["denied"])


@pytest.mark.parametrize(
    "data", [b"\x00\x01\x02\r\n\r\n", b"GET /\r\n\r\n", b"SSH-2.0-x\r\n\r\n", b"CONNECT\r\n\r\n"]
)
async def test_nonsense_is_refused_and_counted(bench: Bench, data: bytes) -> None:
    await bench.start(Policy(Mode.OPEN))
    assert (await bench.say(data)).startswith(b"HTTP/1.1 400 ")
    assert [each.reason for each in bench.refused] == ["malformed"]


async def test_an_endless_head_is_cut_off(bench: Bench) -> None:
    await bench.start(Policy(Mode.OPEN))
    try:
        reply = await bench.say(b"GET http://x.example/ HTTP/1.1\r\n" + b"A: " + b"x" * 200_000)
    except ConnectionError:
        reply = b""
    assert b"200" not in reply
    assert bench.origin.connections == 0


def in_pieces(record: bytes, size: int) -> bytes:
    """The same handshake in several records, as a server puts it together."""
    body = record[5:]
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(record[:3] + len(piece).to_bytes(2, "big") + piece for piece in pieces)


async def test_a_hello_in_pieces_does_not_hide_its_name(bench: Bench) -> None:
    await bench.start(Policy(Mode.ALLOW, (bench.rule("good.example"),)))
    connect = f"CONNECT good.example:{bench.origin.port} HTTP/1.1\r\n\r\n".encode()
    whole = hello("evil.example")
    alert = b"\x15\x03\x01\x00\x02\x01\x5a"
    for hidden in (in_pieces(whole, 16), in_pieces(whole, 3), alert + whole):
        await bench.say(connect + hidden + b"\r\n\r\n")
    assert [each.reason for each in bench.refused] == ["not_allowed"] * 3
    assert bench.origin.seen == []


async def test_a_policy_that_changes_while_a_person_thinks_is_the_one_that_counts(bench: Bench) -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    async def think(host: str, port: int) -> bool:
        asked.set()
        await answer.wait()
        return True

    bench._approve = think
    await bench.start(Policy(Mode.ALLOW, (bench.rule("good.example", approve=True),)))
    request = asyncio.create_task(bench.get("good.example"))
    await asked.wait()
    assert bench.proxy is not None
    bench.proxy.change(Policy(Mode.ALLOW, (bench.rule("other.example"),), version=2))
    answer.set()
    assert b"hi" not in await request
    assert bench.origin.connections == 0
