from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from tests.contract.harness import MemorySide, NatsSide, Side, small_topology

from temper.runtime.embedded import NatsServer
from temper.runtime.topology import Topology

MakeSide = Callable[[Topology], Awaitable[Side]]


@pytest_asyncio.fixture(params=["memory", "nats"])
async def make_side(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MakeSide]:
    sides: list[Side] = []
    server = NatsServer(tmp_path / "nats") if request.param == "nats" else None
    if server is not None:
        await server.start()

    async def make(shape: Topology) -> Side:
        side = await (MemorySide.make(shape) if server is None else NatsSide.make(server, shape))
        sides.append(side)
        return side

    yield make
    for side in sides:
        for client in getattr(side, "clients", []):
            await client.close()
        await side.bus.close()
    if server is not None:
        await server.stop()


@pytest_asyncio.fixture
async def side(make_side: MakeSide) -> Side:
    return await make_side(small_topology())
