import pytest
from tests.unit.trainer.world import World

from temper.runtime.bus.memory import MemoryBus
from temper.runtime.clock import SystemClock


@pytest.fixture
async def world(tmp_path):
    bus = MemoryBus(SystemClock(), name="test")
    await bus.connect()
    yield World(tmp_path / "objects", bus)
    await bus.close()
