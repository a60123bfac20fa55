"""Every test of this folder runs over every engine; what an engine does not declare is skipped by name."""

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from tests.conformance.rollout.engines import CONFIG, CONTEXT, ENGINES, ROOMY, TIGHT_CONTEXT, Kind, policy
from tests.conformance.rollout.tensorrt_double import installed

from temper.rollout.engine.base import Blocks, Engine, SwapPolicy
from temper.runtime.testing import eventually


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "needs(*capabilities): what an engine must declare for a test to apply"
    )


@pytest.fixture(autouse=True)
def _tensorrt_llm() -> Iterator[None]:
    """The double in the vendor's place."""
    with installed():
        yield


@pytest.fixture(params=sorted(ENGINES))
def kind(request: pytest.FixtureRequest) -> Kind:
    """The engine under test, not made yet."""
    found = ENGINES[request.param]
    marker = request.node.get_closest_marker("needs")
    needed = set(marker.args) if marker else set()
    lacking = {
        each for each in needed if each not in (found.policies if isinstance(each, SwapPolicy) else found.can)
    }
    if lacking:
        pytest.skip(f"{request.param} does not declare {', '.join(sorted(lacking))}")
    return found


async def _serve(kind: Kind, kv_tokens: int, context: int) -> AsyncIterator[Engine]:
    made = kind.make(kv_tokens, context)
    await made.start()
    await made.load(policy(1, config={**CONFIG, "max_position_embeddings": context}))
    await made.swap(1)
    yield made
    await _assert_conserved(made)
    await made.close()


@pytest_asyncio.fixture
async def engine(kind: Kind) -> AsyncIterator[Engine]:
    """A started engine that serves version 1. After the test, every block of its pool is accounted for."""
    async for made in _serve(kind, ROOMY, CONTEXT):
        yield made


@pytest_asyncio.fixture
async def tight(kind: Kind) -> AsyncIterator[Engine]:
    """One with room for longer contexts, whose pool runs out."""
    async for made in _serve(kind, kind.tight, TIGHT_CONTEXT):
        yield made


@pytest_asyncio.fixture
async def ample(kind: Kind) -> AsyncIterator[Engine]:
    """The same with a pool that does not."""
    async for made in _serve(kind, ROOMY, TIGHT_CONTEXT):
        yield made


async def _assert_conserved(engine: Engine) -> None:
    """sglang#11970: available + evictable + held is the total at every idle step, whatever the test did."""
    if not engine.alive or engine.stats().paused or engine.stats().blocks is None:
        return
    await eventually(lambda: engine.stats().running + engine.stats().waiting == 0, what="idle engine")
    stats = engine.stats()
    blocks = stats.blocks
    assert isinstance(blocks, Blocks)
    assert blocks.free + blocks.evictable + blocks.held == blocks.total
    assert stats.kept or blocks.held == 0
