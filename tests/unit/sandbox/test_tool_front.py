"""Who may use the tools over HTTP, and what is refused before it costs a sandbox."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

pytest.importorskip("mcp", reason="the extra mcp is not installed")

import httpx2
from starlette.types import Message
from tests.unit.sandbox.seats import Seats

from temper.runtime.errors import Unavailable
from temper.runtime.testing import eventually
from temper.sandbox.toolfront import ToolFront
from temper.sandbox.toolsessions import ToolSessions

ACCEPT = "application/json, text/event-stream"
SESSION = "mcp-session-id"
VERSION = "mcp-protocol-version"
TOKEN = "s3cret"


def message(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


OPENING = message(
    "initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo={"name": "t", "version": "1"}
)
CALL = message("tools/call", name="python", arguments={"code": "1"})


class Front:
    """The application, and a client of it in the same loop."""

    def __init__(self, client: httpx2.AsyncClient, seats: Seats, sessions: ToolSessions) -> None:
        self._client = client
        self.seats = seats
        self.sessions = sessions

    async def ask(self, method: str = "POST", path: str = "/mcp", **sent: Any) -> httpx2.Response:
        return await self._client.request(method, path, **sent)

    async def begun(self) -> dict[str, str]:
        """The headers of a new session."""
        reply = await self.ask(json=OPENING)
        assert reply.status_code == 200
        return {SESSION: reply.headers[SESSION]}


@asynccontextmanager
async def served(
    token: str | None = None, most: int = 2, host: str = "127.0.0.1:8765", idle_s: float = 3600.0
) -> AsyncIterator[Front]:
    seats = Seats()
    sessions = ToolSessions(seats.seat, most, idle_s)
    transport = httpx2.ASGITransport(ToolFront(sessions, token))
    headers = {"accept": ACCEPT}
    async with httpx2.AsyncClient(transport=transport, base_url=f"http://{host}", headers=headers) as client:
        yield Front(client, seats, sessions)
    await sessions.close()
    assert not seats.taken


def told(reply: httpx2.Response) -> str:
    return reply.json()["error"]["message"]


@pytest.mark.parametrize(
    "shown",
    [None, "", TOKEN, "Bearer", "Bearer ", "Bearer s3cre", "Bearer s3cret2", "Basic s3cret", "Bearer \xff"],
)
async def test_without_the_token_nothing_is_served_or_said(shown: str | None) -> None:
    async with served(TOKEN) as front:
        headers = {} if shown is None else {"authorization": shown.encode("latin-1")}
        for method, path in (("POST", "/mcp"), ("GET", "/mcp"), ("DELETE", "/mcp"), ("GET", "/elsewhere")):
            reply = await front.ask(method, path, headers=headers, json=OPENING)
            assert (reply.status_code, reply.headers["www-authenticate"]) == (401, "Bearer")
        assert front.seats.made == 0


@pytest.mark.parametrize("shown", ["Bearer s3cret", "bearer  s3cret "])
async def test_with_the_token_any_host_and_origin_is_served(shown: str) -> None:
    async with served(TOKEN, host="tools.example.com") as front:
        headers = {"authorization": shown, "origin": "https://app.example.com"}
        assert (await front.ask(headers=headers, json=OPENING)).status_code == 200


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("127.0.0.1:8765", None, 200),
        ("localhost:1", "http://localhost:6274", 200),
        ("[::1]:8765", "http://127.0.0.1", 200),
        ("localhost", None, 200),
        ("evil.example.com", None, 421),
        ("localhost.evil.example.com:8765", None, 421),
        ("127.0.0.1.evil.example.com", None, 421),
        ("127.0.0.1:8765", "http://evil.example.com", 403),
        ("127.0.0.1:8765", "http://localhost.evil.example.com:80", 403),
        ("127.0.0.1:8765", "null", 403),
    ],
)
async def test_without_a_token_pages_of_a_browser_reach_nothing(
    host: str, origin: str | None, status: int
) -> None:
    async with served(host=host) as front:
        reply = await front.ask(headers={"origin": origin} if origin else {}, json=OPENING)
        assert (reply.status_code, front.seats.made) == (status, int(status == 200))
        assert status == 200 or "--token-file" in told(reply)


@pytest.mark.parametrize(
    ("listens", "named"), [("127.0.0.2", "127.0.0.2"), ("::1", "[::1]"), ("me", "me:80")]
)
async def test_the_name_that_was_listened_on_is_a_name_of_this_machine(listens: str, named: str) -> None:
    transport = httpx2.ASGITransport(ToolFront(ToolSessions(Seats().seat, 1, 1.0), None, listens))
    async with httpx2.AsyncClient(transport=transport, base_url=f"http://{named}") as client:
        assert (await client.get("/mcp")).status_code == 405


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"", 400, "no JSON"),
        (b"{", 400, "no JSON"),
        (b"\xff", 400, "no JSON"),
        (b"[" * 100_000, 400, "no JSON"),
        (b"7", 400, "no JSON-RPC message"),
        (b"{}", 400, "no JSON-RPC message"),
        (json.dumps([OPENING]).encode(), 400, "no JSON-RPC message"),
        (json.dumps(OPENING | {"id": None}).encode(), 400, "a session begins by the request initialize"),
        (json.dumps(CALL).encode(), 400, "a session begins by the request initialize"),
        (b'{"jsonrpc": "2.0", "method": "initialize"}', 400, "a session begins by the request initialize"),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "initialize"}', 400, "params.protocolVersion of initialize"),
        (json.dumps(message("initialize", protocolVersion=7)).encode(), 400, "of initialize"),
    ],
    ids=range(12),
)
async def test_what_begins_no_session_makes_no_sandbox(body: bytes, status: int, said: str) -> None:
    async with served() as front:
        reply = await front.ask(content=body, headers={"content-type": "application/json"})
        assert (reply.status_code, front.seats.made) == (status, 0)
        assert said in told(reply)


async def test_what_is_asked_of_no_session_or_by_no_method_is_refused() -> None:
    async with served() as front:
        unknown = {SESSION: "0" * 32}
        for method in ("POST", "DELETE"):
            reply = await front.ask(method, headers=unknown, json=CALL)
            assert (reply.status_code, "no such session" in told(reply)) == (404, True)
        assert (await front.ask("DELETE")).status_code == 400
        assert "/mcp" in told(await front.ask("POST", "/", json=OPENING))
        for method in ("GET", "PUT", "OPTIONS"):
            reply = await front.ask(method)
            assert (reply.status_code, reply.headers["allow"]) == (405, "POST, DELETE")
        plain = {"content-type": "text/plain"}
        assert (await front.ask(content=json.dumps(OPENING), headers=plain)).status_code == 400
        assert (await front.ask(json=OPENING, headers={"accept": "text/html"})).status_code == 406
        assert front.seats.made == 0


@pytest.mark.parametrize("version", ["2026-07-28", "1999-01-01", ""])
async def test_a_version_without_sessions_is_refused_with_those_that_have_them(version: str) -> None:
    async with served() as front:
        reply = await front.ask(headers={VERSION: version}, json=message("server/discover"))
        error = reply.json()["error"]
        assert (reply.status_code, error["code"], error["data"]["requested"]) == (400, -32022, version)
        assert "2025-06-18" in error["data"]["supported"]


async def test_a_body_has_a_bound_in_size_whether_declared_or_not() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(5):
            yield b" " * (1 << 20)

    async with served() as front:
        headers = {"content-type": "application/json"}
        for content in (b" " * (5 << 20), pieces()):
            reply = await front.ask(content=content, headers=headers)
            assert (reply.status_code, "4194304 bytes" in told(reply)) == (413, True)
        session = await front.begun()
        reply = await front.ask(content=b" " * (5 << 20), headers=headers | session)
        assert reply.status_code == 413


class Wire:
    """One request by hand: what the client has sent, and what it got."""

    def __init__(self, *sent: Message) -> None:
        self._sent = list(sent)
        self.got: list[Message] = []
        self.left = asyncio.Event()

    async def receive(self) -> Message:
        if self._sent:
            return self._sent.pop(0)
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, sent: Message) -> None:
        self.got.append(sent)


def scope() -> dict[str, Any]:
    headers = {"host": "localhost", "accept": ACCEPT, "content-type": "application/json"}
    return {
        "type": "http",
        "method": "POST",
        "path": "/mcp",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }


async def test_a_body_has_a_bound_in_time() -> None:
    sessions = ToolSessions(Seats().seat, 1, 3600.0)
    wire = Wire({"type": "http.request", "body": b"{", "more_body": True})
    await ToolFront(sessions, None, body_s=0.01)(scope(), wire.receive, wire.send)
    assert wire.got[0]["status"] == 408
    assert (b"connection", b"close") in wire.got[0]["headers"]


@pytest.mark.parametrize("when", ["in the body", "while its sandbox is made"])
async def test_a_client_that_leaves_too_early_has_no_session(when: str) -> None:
    seats = Seats()
    seats.enter.clear()
    sessions = ToolSessions(seats.seat, 1, 3600.0)
    wire = Wire(
        {"type": "http.request", "body": json.dumps(OPENING).encode(), "more_body": when == "in the body"}
    )
    asking = asyncio.create_task(ToolFront(sessions, None)(scope(), wire.receive, wire.send))
    if when != "in the body":
        await eventually(lambda: seats.made == 1)
    wire.left.set()
    seats.enter.set()
    await asking
    assert (len(sessions), len(seats.taken), wire.got) == (0, 0, [])


async def test_sessions_beyond_the_bound_are_refused_until_one_ends() -> None:
    async with served(most=2) as front:
        first, _ = await front.begun(), await front.begun()
        full = await front.ask(json=OPENING)
        assert (full.status_code, "--sessions" in told(full)) == (503, True)
        assert SESSION not in full.headers
        assert (await front.ask("DELETE", headers=first)).status_code == 204
        assert (await front.ask("DELETE", headers=first)).status_code == 404
        await front.begun()
        assert (front.seats.made, len(front.seats.taken)) == (3, 2)


async def test_why_there_is_no_sandbox_is_what_the_client_reads() -> None:
    async with served() as front:
        front.seats.fault = Unavailable("no host answers", hint="start one")
        reply = await front.ask(json=OPENING)
        assert (reply.status_code, told(reply)) == (503, "no host answers (start one)")
        assert len(front.sessions) == 0


async def test_an_idle_session_ends_by_itself_and_is_unknown_afterwards() -> None:
    async with served(idle_s=0.01) as front:
        session = await front.begun()
        await eventually(lambda: not front.seats.taken and len(front.sessions) == 0)
        assert (await front.ask(headers=session, json=CALL)).status_code == 404


async def test_a_call_under_way_ends_with_its_session() -> None:
    async with served() as front:
        session = await front.begun()
        front.seats.answer.clear()
        calling = asyncio.create_task(front.ask(headers=session, json=CALL))
        await eventually(lambda: front.seats.calls == 1)
        assert (await front.ask("DELETE", headers=session)).status_code == 204
        assert not front.seats.taken
        assert '"result"' not in (await calling).text


async def test_calls_of_one_session_are_answered_each_by_its_own_answer() -> None:
    async with served() as front:
        session = await front.begun()
        await front.ask(headers=session, json={"jsonrpc": "2.0", "method": "notifications/initialized"})
        calls = [CALL | {"id": number, "params": {"name": f"tool-{number}"}} for number in range(8)]
        replies = await asyncio.gather(*(front.ask(headers=session, json=call) for call in calls))
        for number, reply in enumerate(replies):
            assert f"tool-{number} {{}}" in reply.text


async def test_of_two_requests_with_one_id_the_second_is_refused_instead_of_left_waiting() -> None:
    async with served() as front:
        session = await front.begun()
        front.seats.answer.clear()
        calling = asyncio.create_task(front.ask(headers=session, json=CALL))
        await eventually(lambda: front.seats.calls == 1)
        again = await front.ask(headers=session, json=CALL | {"id": "1"})
        assert (again.status_code, "under way" in told(again)) == (409, True)
        front.seats.answer.set()
        assert '"result"' in (await calling).text
        assert '"result"' in (await front.ask(headers=session, json=CALL)).text
        assert (await front.ask(headers=session, content=b"[]")).status_code == 400
