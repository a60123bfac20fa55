"""Every test of this folder runs over every engine."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.conformance.rollout.engines import ENGINES, policy

from temper.rollout.engine.base import Engine


@pytest_asyncio.fixture(params=sorted(ENGINES))
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    """A started engine that serves version 1."""
    made = ENGINES[request.param]()
    await made.start()
    await made.load(policy(1))
    await made.swap(1)
    yield made
    await made.close()
