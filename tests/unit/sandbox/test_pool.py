"""Warm sandboxes: how many, of which kind, and for whom."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.sandbox.worlds import LIMITS

from temper.runtime.clock import FakeClock
from temper.runtime.errors import Rejected
from temper.sandbox.engine.fake import FakeBackend
from temper.sandbox.forecast import Forecast
from temper.sandbox.pool import WarmPool


class Pool:
    """A pool that is being filled, on a clock that only the test moves."""

    def __init__(self, least: int, most: int, recycles: int = 0) -> None:
        self.clock = FakeClock()
        self.backend = FakeBackend(slots=64)
        self.pool = WarmPool(self.backend, LIMITS, least, most, recycles=recycles, clock=self.clock)
        self._filling = asyncio.create_task(self.pool.fill())

    async def settled(self) -> int:
        await self.clock.settle()
        return len(self.pool)

    async def close(self) -> None:
        self._filling.cancel()
        await self.pool.close()
        assert self.backend.live == set()


def test_what_is_announced_is_wanted_until_it_is_taken() -> None:
    forecast = Forecast(window_s=10)
    forecast.announce(4, 0)
    assert forecast.demand(1) == 4
    forecast.take(1)
    forecast.take(2)
    assert forecast.demand(2) == 2
    assert forecast.demand(11) == 0  # what did not come in time is not waited for


def test_how_many_sandboxes_a_task_needs_is_learned() -> None:
    many, none = Forecast(window_s=1), Forecast(window_s=1)
    for second in range(0, 200, 2):
        for forecast in (many, none):
            forecast.announce(4, second)
        for _ in range(32):
            many.take(second)
        for forecast in (many, none):
            forecast.demand(second)
    assert 7 < many.ratio <= 8
    assert none.ratio < 0.05


@given(st.lists(st.tuples(st.sampled_from(["announce", "take", "wait"]), st.integers(1, 20)), max_size=60))
def test_demand_is_never_negative_and_ends_when_nothing_is_announced(moves: list[tuple[str, int]]) -> None:
    forecast, now = Forecast(window_s=5), 0.0
    for move, number in moves:
        if move == "announce":
            forecast.announce(number, now)
        elif move == "take":
            forecast.take(now)
        else:
            now += number
        assert forecast.demand(now) >= 0
        assert forecast.ratio > 0
    assert forecast.demand(now + 6) == 0


async def test_announced_tasks_fill_the_pool_up_to_its_most_and_no_longer_than_they_are_awaited() -> None:
    made = Pool(least=1, most=6)
    assert await made.settled() == 1
    made.pool.expect(LIMITS, 4)
    assert await made.settled() == 4
    made.pool.expect(LIMITS, 40)
    assert await made.settled() == 6
    await made.clock.advance(100)
    taken = made.pool.take(LIMITS)
    assert taken is not None
    await taken.destroy()
    assert await made.settled() == 1
    await made.close()


async def test_a_kind_is_everything_that_is_settled_at_creation() -> None:
    made = Pool(least=1, most=4)
    await made.settled()
    assert made.pool.take(replace(LIMITS, inodes=100)) is None
    taken = made.pool.take(replace(LIMITS, wall_s=1, output_bytes=5, cpu_s=2, grace_s=0))
    assert taken is not None
    await taken.destroy()
    await made.settled()
    await made.close()


async def test_a_sandbox_is_recycled_as_new_and_only_so_often() -> None:
    made = Pool(least=1, most=1, recycles=2)
    await made.settled()
    first = made.pool.take(LIMITS)
    assert first is not None
    made.backend.script(lambda _: None)
    for _ in range(2):
        await first.put_file("/work/mine", b"1")
        await made.pool.retire(first, LIMITS)
        assert made.pool.take(LIMITS) is first
        with pytest.raises(Rejected):
            await first.get_file("/work/mine", 1)
    await made.pool.retire(first, LIMITS)
    assert not first.alive
    await made.close()


async def test_without_recycling_or_demand_a_used_sandbox_is_destroyed() -> None:
    for made in (Pool(least=1, most=1), Pool(least=0, most=0, recycles=9)):
        used = await made.backend.create("used", LIMITS)
        await made.pool.retire(used, LIMITS)
        assert not used.alive
        await made.close()


async def test_one_that_cannot_be_reset_is_destroyed() -> None:
    made = Pool(least=1, most=1, recycles=1)
    await made.settled()
    used = made.pool.take(LIMITS)
    assert used is not None

    async def fails() -> None:
        raise Rejected("no")

    used.reset = fails
    await made.pool.retire(used, LIMITS)
    assert not used.alive
    await made.close()
