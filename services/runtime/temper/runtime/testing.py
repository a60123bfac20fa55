"""Pytest fixtures for everything that is built on the runtime.

Loaded as a plugin (`-p temper.runtime.testing`): `fake_clock`, `memory_platform`, `nats_server`, `nats_bus`, `free_port`,
and the function `eventually` for conditions that real processes bring about.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

import pytest
import pytest_asyncio

from temper.runtime import embedded, topology
from temper.runtime.blobs import BlobStore
from temper.runtime.bus.memory import MemoryBus
from temper.runtime.bus.nats import Credentials, NatsBus
from temper.runtime.clock import FakeClock
from temper.runtime.log.memory import MemoryLog

T = TypeVar("T")

EVENTUALLY_S = 30.0  # generous: a loaded machine must not fail a test, and a success returns at once
LOOK_S = 0.01


@dataclass(frozen=True, slots=True)
class MemoryPlatform:
    """A platform without processes: one broker and one log on one fake clock, and an empty directory."""

    bus: MemoryBus
    """First client of the broker; `bus.client(name)` makes others."""
    log: MemoryLog
    """Event log."""
    clock: FakeClock
    """Turned by `advance`."""
    directory: Path
    """Empty, for a data directory."""
    blobs: BlobStore
    """Object storage in a directory beside it."""


@pytest.fixture
def fake_clock() -> FakeClock:
    """A clock that only the test moves."""
    return FakeClock()


@pytest_asyncio.fixture
async def memory_platform(fake_clock: FakeClock, tmp_path: Path) -> AsyncIterator[MemoryPlatform]:
    """Bus, log, objects and clock of a platform inside the test."""
    bus = MemoryBus(fake_clock, name="test/1")
    await bus.connect()
    directory = tmp_path / "data"
    directory.mkdir()
    blobs = BlobStore(f"file://{tmp_path / 'objects'}")
    yield MemoryPlatform(bus, MemoryLog(fake_clock), fake_clock, directory, blobs)
    await bus.close()


@pytest_asyncio.fixture
async def nats_server(tmp_path: Path) -> AsyncIterator[embedded.NatsServer]:
    """A real nats-server on a free port with an empty store."""
    server = embedded.NatsServer(tmp_path / "nats")
    await server.start()
    yield server
    await server.stop()


@pytest_asyncio.fixture
async def nats_bus(nats_server: embedded.NatsServer) -> AsyncIterator[NatsBus]:
    """A connected client of `nats_server`, with the topology applied."""
    bus = NatsBus(nats_server.url, name="test/1", credentials=Credentials(token=nats_server.token))
    await bus.connect()
    await topology.apply(bus)
    yield bus
    await bus.close()


@pytest.fixture
def free_port() -> int:
    """A port that nobody listens on now."""
    return embedded.free_port()


async def eventually(
    condition: Callable[[], Awaitable[T]] | Callable[[], T],
    *,
    within_s: float = EVENTUALLY_S,
    what: str = "condition",
) -> T:
    """Return the first truthy result of `condition`, which may be a coroutine function; fail after `within_s`."""
    try:
        async with asyncio.timeout(within_s):
            while True:
                found = condition()
                result = cast(T, await found if inspect.isawaitable(found) else found)
                if result:
                    return result
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        pytest.fail(f"{what} did not come about within {within_s:g} s")
