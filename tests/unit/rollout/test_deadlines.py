"""When a sample's time begins, and that every wait ends with it."""

from collections.abc import AsyncIterator

import pytest_asyncio
from tests.unit.rollout.world import JOB, World, group, make_world

from temper.api.common.v1 import common_pb2 as common
from temper.runtime.testing import MemoryPlatform

GOOD = {common.SAMPLE_CLASS_SCORED, common.SAMPLE_CLASS_AGENT_FAILED}


@pytest_asyncio.fixture
async def world(memory_platform: MemoryPlatform) -> AsyncIterator[World]:
    """A worker that plays one episode at a time, on a clock that tests turn; a group has 60 s."""
    around = memory_platform.bus, memory_platform.log, memory_platform.directory, memory_platform.clock
    made = await make_world(*around, episodes=1)
    made.start()
    yield made
    await made.stop()


async def pass_time(world: World, seconds: int) -> None:
    for _ in range(seconds):
        await world.clock.advance(1)  # type: ignore[attr-defined]  # the fake clock of the memory platform


async def test_waiting_for_a_turn_to_play_takes_nothing_from_a_samples_time(world: World):
    await world.publisher.publish(0)
    async with world.permits.one(0):
        await world.order(group(0))
        await pass_time(world, 100)
        assert world.permits.waiting == 4
        assert JOB in world.policies.engines()
    await pass_time(world, 5)
    (record,) = await world.records()
    assert {sample.sample_class for sample in record.samples} <= GOOD


async def test_an_engine_that_does_not_answer_ends_one_sample_after_the_other(world: World):
    """Each has its own 60 s, and the last one ends: no wait is without a bound."""
    await world.publisher.publish(0)
    await world.order(group(0))
    await pass_time(world, 5)
    await world.records()
    await world.policies.engines()[JOB].pause()
    await world.order(group(1))
    await pass_time(world, 4 * 60 + 5)
    record = (await world.records(2))[1]
    assert {sample.finish_reason for sample in record.samples} == {common.FINISH_REASON_DEADLINE}
    assert {sample.sample_class for sample in record.samples} == {common.SAMPLE_CLASS_INFRA_FAILED}
    assert not any(sample.HasField("reward") for sample in record.samples)
