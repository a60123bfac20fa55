"""The tools over HTTP, asked by the protocol's own client: a sandbox for each session, gone with it and with the server."""

import asyncio
import os
import signal
import sys
import traceback
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("mcp", reason="the extra mcp is not installed")

import httpx2
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp_types import TextContent
from tests.conformance.sandbox.servers import address

from temper.runtime.config import load
from temper.runtime.testing import eventually
from temper.sandbox import toolhttp, tools
from temper.sandbox.config import SandboxConfig
from temper.sandbox.host import SandboxHost
from temper.sandbox.mcp import reclaim_left
from temper.sandbox.seats import LocalSeats
from temper.sandbox.toollisten import HttpOptions, listen, url
from temper.sandbox.toolsessions import ToolSessions

LONG_S = 3600.0
ROOT = pytest.param(
    "namespaces", marks=pytest.mark.skipif(os.geteuid() != 0, reason="this backend needs root here")
)
ACCEPT = {"accept": "application/json, text/event-stream"}
OPENING = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "by hand", "version": "1"},
    },
}


@dataclass(frozen=True)
class Served:
    """A server in this loop."""

    url: str
    host: SandboxHost
    sessions: ToolSessions
    told: asyncio.Event
    serving: asyncio.Task[None]

    def sandboxes(self) -> int:
        return len(self.host.sessions)


@asynccontextmanager
async def served(
    directory: Path, *, backend: str = "fake", token: str | None = None, most: int = 4
) -> AsyncIterator[Served]:
    sets = [f"state_dir={directory}", f"backend={backend}", "allow_weak=true", "first_uid=370000"]
    options = HttpOptions("127.0.0.1", 0, token, most, LONG_S)
    listening = listen(options)
    async with LocalSeats(load("sandbox", SandboxConfig, sets=sets), most) as seats:
        sessions, told = ToolSessions(seats.seat, most, LONG_S), asyncio.Event()
        serving = asyncio.create_task(toolhttp.serve(sessions, options, listening, told, lambda: None))
        try:
            yield Served(url(listening), seats._host, sessions, told, serving)
        finally:
            told.set()
            await serving


async def python(client: Client, code: str) -> str:
    result = await client.call_tool("python", {"code": code})
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


async def refusal(where: str) -> str:
    """What the client says of a server that takes no session."""
    with pytest.raises(ExceptionGroup) as refused:
        async with Client(where):
            pass
    assert refused.group_contains(MCPError)
    return "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize("kind", ["fake", ROOT])
async def test_two_clients_have_two_sandboxes_that_go_with_them(kind: str, tmp_path: Path) -> None:
    async with served(tmp_path, backend=kind) as server:
        async with Client(server.url) as first, Client(server.url) as second:
            offered = {each.name: each.input_schema for each in (await first.list_tools()).tools}
            assert offered == {each.name: dict(each.parameters) for each in tools.STANDARD.values()}
            await asyncio.gather(python(first, "x = 20"), python(second, "x = 30"))
            assert await python(first, "x + 1") == "21"
            assert await python(second, "x + 1") == "31"
            assert server.sandboxes() == 2
            await first.call_tool("files", {"op": "write", "path": "mine", "content": "hi"})
            seen = await second.call_tool("files", {"op": "read", "path": "mine"})
            assert seen.is_error
            assert (await first.call_tool("submit", {"answer": "1"})).is_error is False
            assert (await first.call_tool("python", {"code": "x"})).is_error
            assert await python(second, "x") == "30"
        await eventually(lambda: server.sandboxes() == 0 and len(server.sessions) == 0)


async def test_a_client_shows_its_token(tmp_path: Path) -> None:
    async with served(tmp_path, token="s3cret") as server:
        headers = {"authorization": "Bearer s3cret"}
        async with (
            httpx2.AsyncClient(headers=headers) as http,
            Client(streamable_http_client(server.url, http_client=http)) as client,
        ):
            assert await python(client, "1 + 1") == "2"
        assert "Authorization: Bearer TOKEN" in await refusal(server.url)


async def test_the_client_that_is_one_too_many_reads_why_and_may_come_later(tmp_path: Path) -> None:
    async with served(tmp_path, most=1) as server:
        async with Client(server.url) as client:
            assert "as many as --sessions allows" in await refusal(server.url)
            assert await python(client, "6 * 7") == "42"
        async with Client(server.url) as client:
            assert await python(client, "6 * 7") == "42"


async def test_a_client_of_sessionless_versions_alone_reads_which_have_sessions(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        async with Client(server.url, mode="2026-07-28") as client:
            with pytest.raises(MCPError, match="take one that begins by initialize"):
                await client.list_tools()
        assert server.sandboxes() == 0


async def test_a_stop_ends_every_session_while_its_client_is_there(tmp_path: Path) -> None:
    async with served(tmp_path) as server, AsyncExitStack() as clients:
        for _ in range(3):
            client = await clients.enter_async_context(Client(server.url))
            assert await python(client, "1 + 1") == "2"
        assert server.sandboxes() == 3
        server.told.set()
        await server.serving
        assert (server.sandboxes(), len(server.sessions)) == (0, 0)


async def test_many_at_once_get_a_session_or_the_reason_and_no_sandbox_is_left(tmp_path: Path) -> None:
    async with served(tmp_path, most=8) as server, httpx2.AsyncClient(headers=ACCEPT) as http:
        replies = await asyncio.gather(*(http.post(server.url, json=OPENING) for _ in range(20)))
        assert sorted(reply.status_code for reply in replies) == [200] * 8 + [503] * 12
        given = {name for each in replies if (name := each.headers.get("mcp-session-id"))}
        assert len(given) == server.sandboxes() == 8
        ends = [http.delete(server.url, headers={"mcp-session-id": name}) for name in given]
        assert {reply.status_code for reply in await asyncio.gather(*ends)} == {204}
        assert (server.sandboxes(), len(server.sessions)) == (0, 0)


async def test_a_connection_that_asks_for_nothing_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolhttp, "_REQUEST_S", 0.01)
    async with served(tmp_path) as server:
        where = httpx2.URL(server.url)
        reader, writer = await asyncio.open_connection(where.host, where.port)
        writer.write(b"POST /mcp HTTP/1.1\r\nHost:")
        assert await asyncio.wait_for(reader.read(), 60) == b""
        writer.close()


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def names(directory: Path) -> list[str]:
    return sorted(each.name for each in directory.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="the namespaces backend needs root here")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_a_server_that_ends_leaves_no_sandbox(how: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "temper.sandbox", "mcp", "--set", "first_uid=380000"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    server = await asyncio.create_subprocess_exec(
        *command, "--http", "127.0.0.1:0", env=environment, stderr=asyncio.subprocess.PIPE
    )
    async with httpx2.AsyncClient(headers=ACCEPT) as http:
        assert (await http.post(await address(server), json=OPENING)).status_code == 200
    children = children_of(server.pid)
    assert children
    server.send_signal(how)
    assert await server.wait() == (-how if how is signal.SIGKILL else 0)
    await eventually(lambda: not any(Path("/proc", each).exists() for each in children))
    if how is signal.SIGKILL:
        assert reclaim_left(tmp_path) == 1
    assert not names(tmp_path)
