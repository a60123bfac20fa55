"""The blocking object of the SDK and the MCP server of a platform, over a real broker and a real service."""

import asyncio
import random
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.conformance.sandbox.servers import address
from tests.conformance.sandbox.test_service import Service, working_backend

from temper.api.sandbox.v1 import control_pb2, sandbox_pb2
from temper.client.sdk import transfers
from temper.client.sdk.sandbox import SandboxClient
from temper.client.sdk.sandboxes import Entry, Sandbox
from temper.client.sdk.trees import packed
from temper.runtime.bus.nats import NatsBus
from temper.runtime.embedded import NatsServer
from temper.runtime.errors import Rejected
from temper.runtime.testing import eventually


@pytest_asyncio.fixture
async def service(nats_server: NatsServer, nats_bus: NatsBus, tmp_path: Path) -> AsyncIterator[Service]:
    made = Service(nats_server, nats_bus, tmp_path, await working_backend())
    await made.start()
    yield made
    assert made.process is not None
    made.process.kill()
    await made.process.wait()


def use(server: NatsServer) -> None:
    with Sandbox.create(bus_url=server.url, bus_token_file=server.token_file) as box:
        ran = box.run("echo out; echo err >&2; exit 3")
        assert (ran.stdout, ran.stderr, ran.exit_code, ran.outcome) == ("out\n", "err\n", 3, "ok")
        assert box.run(["cat"], stdin=b"in").stdout == "in"
        assert box.run("sleep 600", timeout_s=0.2).outcome == "timed_out"
        box.files.write("/work/a/b", "text")
        assert box.files.read("/work/a/b") == b"text"
        assert_that_size_does_not_matter(box)
        assert Entry("/work/a/b", "file", 4) in box.files.list(depth=2)
        assert box.call("python", code="6 * 7") == "42"
        with box.pty() as terminal:
            terminal.resize(30, 90)
            terminal.send("stty size; exit\n")
            said = b""
            while more := terminal.read():
                said += more
        assert b"30 90" in said
        box.files.remove("/work/a", recursive=True)
        with pytest.raises(Rejected):
            box.files.read("/work/a/b")


def assert_that_size_does_not_matter(box: Sandbox) -> None:
    large = random.Random(7).randbytes(3 * transfers.PIECE + 1)
    box.files.write("/work/large/--x $(id)", large, 0o600)
    assert box.files.read("/work/large/--x $(id)") == large
    assert box.run(["stat", "-c", "%a", "/work/large/--x $(id)"]).stdout == "600\n"
    with pytest.raises(Rejected, match=r"directory|space"):
        box.files.write("/work/large", large)


async def test_a_large_tree_goes_in_whole_with_its_links(
    service: Service, nats_server: NatsServer, tmp_path: Path
) -> None:
    (tmp_path / "tree" / "deep").mkdir(parents=True)
    content = random.Random(8).randbytes(transfers.PIECE)
    (tmp_path / "tree" / "deep" / "a").write_bytes(content)
    (tmp_path / "tree" / "link").symlink_to("/etc/hostname")
    archive = packed(tmp_path / "tree")
    assert len(archive) > transfers.PIECE
    async with SandboxClient(nats_server.url, nats_server.token_file) as client:
        place = await client.create("tree", lease_s=60)
        await transfers.put_tree(client, place, "/work/into", archive)
        found = bytearray()

        async def take(data: bytes) -> None:
            found.extend(data)

        await transfers.get_file(client, place, "/work/into/deep/a", take)
        assert bytes(found) == content
        where = control_pb2.StatFileRequest(session_id="tree", path="/work/into/link")
        entry = (await client.ask(place.host, where, control_pb2.StatFileResponse)).entry
        assert (entry.kind, entry.target) == (control_pb2.ENTRY_KIND_LINK, "/etc/hostname")


async def test_the_object_runs_programs_moves_files_types_and_leaves_nothing(
    service: Service, nats_server: NatsServer
) -> None:
    await asyncio.to_thread(use, nats_server)
    assert await sessions(service) == 0


async def test_a_platforms_tools_over_mcp_have_one_sandbox_that_goes_with_the_client(
    service: Service, nats_server: NatsServer
) -> None:
    mcp = pytest.importorskip("mcp", reason="the extra mcp is not installed")
    command = tools_of(nats_server)
    async with mcp.Client(mcp.StdioServerParameters(command=command[0], args=command[1:])) as client:
        result = await client.call_tool("shell", {"command": "echo hi"})
        assert (result.is_error, result.content[0].text) == (False, "hi")
        assert await sessions(service) == 1
    # A client kills a server that is slow to leave; then the lease ends the sandbox.
    await eventually(lambda: left(service, 0), within_s=120)


async def test_a_platforms_tools_over_http_have_a_sandbox_for_each_session(
    service: Service, nats_server: NatsServer
) -> None:
    mcp = pytest.importorskip("mcp", reason="the extra mcp is not installed")
    server = await asyncio.create_subprocess_exec(
        *tools_of(nats_server), "--http", "127.0.0.1:0", stderr=asyncio.subprocess.PIPE
    )
    where = await address(server)
    async with mcp.Client(where) as first:
        async with mcp.Client(where) as second:
            for client, said in ((first, "one"), (second, "two")):
                result = await client.call_tool("shell", {"command": f"echo {said} | tee -a /work/said"})
                assert (result.is_error, result.content[0].text) == (False, said)
            assert await sessions(service) == 2
        await eventually(lambda: left(service, 1))
        server.terminate()
        assert await server.wait() == 0
        await eventually(lambda: left(service, 0), within_s=120)


def tools_of(server: NatsServer) -> list[str]:
    """The command that serves a platform's tools."""
    return [
        *(sys.executable, "-c", "import sys; from temper.client.cli import main; sys.exit(main())"),
        *("sandbox", "mcp", "--isolation", "weak", "--lease", "20"),
        *("--bus-url", server.url, "--bus-token-file", str(server.token_file)),
    ]


async def sessions(service: Service) -> int:
    listed = await service.ask(service.host, "ListSessions", sandbox_pb2.ListSessionsRequest())
    return len(listed.sessions)


async def left(service: Service, number: int) -> bool:
    return await sessions(service) == number
