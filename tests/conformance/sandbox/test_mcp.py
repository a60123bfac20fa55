"""The tools over MCP from a real process, asked by the protocol's own client."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mcp", reason="the extra mcp is not installed")

from mcp import Client, StdioServerParameters
from mcp_types import TextContent

from temper.runtime.testing import eventually
from temper.sandbox import tools

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the namespaces backend needs root here")
COMMAND = [sys.executable, "-m", "temper.sandbox", "mcp"]


async def told(client: Client, name: str, **arguments: object) -> tuple[bool | None, str]:
    result = await client.call_tool(name, arguments)
    (content,) = result.content
    assert isinstance(content, TextContent)
    return result.is_error, content.text


async def test_a_client_of_the_protocol_plays_a_whole_session() -> None:
    async with Client(StdioServerParameters(command=COMMAND[0], args=COMMAND[1:])) as client:
        offered = {each.name: each.input_schema for each in (await client.list_tools()).tools}
        assert offered == {each.name: dict(each.parameters) for each in tools.STANDARD.values()}
        assert await told(client, "python", code="x = 20\nx + 1") == (False, "21")
        assert await told(client, "python", code="x + 2") == (False, "22")
        assert await told(client, "shell", command="echo out; exit 3") == (True, "out\n[exit code 3]")
        assert await told(client, "files", op="write", path="a/b", content="hi") == (False, "wrote 2 bytes")
        assert await told(client, "shell", command="cat a/b") == (False, "hi")
        assert await told(client, "python", code=5) == (False, "5\n[call repaired: type]")
        wrong, text = await told(client, "rm", path="/")
        assert (wrong, text.startswith("error: no tool 'rm'")) == (True, True)
        assert await told(client, "files", op="read", path="nothing") == (
            True,
            "error: 'nothing': no such file or directory",
        )
        assert await told(client, "submit", answer="22") == (False, "submitted")
        assert (await told(client, "shell", command="ls"))[0]


async def test_a_term_ends_the_server_and_its_sandbox_while_its_input_is_open() -> None:
    server = await asyncio.create_subprocess_exec(*COMMAND, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    listed = Path(f"/proc/{server.pid}/task/{server.pid}/children")
    (launcher, *_) = await eventually(lambda: listed.read_text().split())
    server.send_signal(signal.SIGTERM)
    # It may not have begun to listen for the signal: then it dies of it, and its sandbox with it.
    assert await asyncio.wait_for(server.wait(), 60) in {0, -signal.SIGTERM}
    await eventually(lambda: not Path(f"/proc/{launcher}").exists())


@pytest.mark.parametrize("setting", ["backend=process", "backend=nothing"])
def test_a_backend_that_does_not_do_is_named_before_anything_is_served(setting: str) -> None:
    done = subprocess.run(
        [*COMMAND, "--set", setting], stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (3, b"")
    assert b"backend" in done.stderr
