"""Servers of the tools over HTTP, in processes of their own."""

import asyncio


async def address(server: asyncio.subprocess.Process) -> str:
    """Where it listens, as it says on standard error; it may warn of other things before."""
    assert server.stderr is not None
    while line := (await server.stderr.readline()).decode():
        if line.startswith("tools at "):
            return line.split()[2]
    raise AssertionError("the server ended before it listened")
