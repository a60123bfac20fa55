"""Who may play, and how many at once."""

import asyncio
from contextlib import AsyncExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from temper.rollout.engine.base import Blocks, Stats
from temper.rollout.permits import Gauge, Permits, Pressure
from temper.runtime.testing import eventually


def stats(*, held: int = 0, total: int = 100, preemptions: int = 0, blocks: bool = True) -> Stats:
    pool = Blocks(total, total - held, 0, held) if blocks else None
    return Stats(0, 0, 0, 0, 8, 0, 0, 0, 0, 0.0, preemptions=preemptions, blocks=pool)


@pytest.mark.parametrize(
    ("held", "pressure"),
    [(0, Pressure.GROW), (74, Pressure.GROW), (75, Pressure.HOLD), (92, Pressure.HOLD), (93, Pressure.CUT)],
)
def test_the_share_of_the_pool_that_is_held_decides(held: int, pressure: Pressure):
    assert Gauge().look([stats(), stats(held=held)]) is pressure


def test_a_sequence_put_back_since_the_last_look_means_cut():
    gauge = Gauge()
    assert gauge.look([stats(preemptions=2)]) is Pressure.CUT
    assert gauge.look([stats(preemptions=2)]) is Pressure.GROW


def test_an_engine_that_does_not_tell_sets_no_limit():
    assert Gauge().look([stats(blocks=False)]) is Pressure.GROW
    assert Gauge().look([]) is Pressure.GROW


async def test_the_limit_falls_under_pressure_and_comes_back():
    held = [95]
    permits = Permits(8, lambda: [stats(held=held[0])])
    async with AsyncExitStack() as playing:
        for _ in range(7):
            await playing.enter_async_context(permits.one(0))
        async with permits.one(0):
            assert permits.in_use == 8
        assert (permits.pressure, permits.limit) == (Pressure.CUT, 5)
        waiting = asyncio.create_task(permits.one(0).__aenter__())
        held[0] = 80
        permits.adjust()
        assert (permits.pressure, permits.limit, waiting.done()) == (Pressure.HOLD, 5, False)
        held[0] = 10
        for _ in range(3):
            permits.adjust()
        await waiting
        assert (permits.limit, permits.in_use) == (8, 8)


async def test_the_group_that_was_published_first_goes_first():
    permits, order = Permits(1), list[int]()

    async def play(since: int) -> None:
        async with permits.one(since):
            order.append(since)

    async with permits.one(0):
        tasks = [asyncio.create_task(play(since)) for since in (5, 3, 9, 3)]
        await eventually(lambda: permits.waiting == 4)
    await asyncio.gather(*tasks)
    assert order == [3, 3, 5, 9]
    assert permits.in_use == 0


async def test_whoever_stops_waiting_takes_no_permit():
    permits = Permits(1)
    async with permits.one(0):
        lost = asyncio.create_task(permits.one(1).__aenter__())
        await eventually(lambda: permits.waiting)
        lost.cancel()
        await asyncio.wait({lost})
    assert (permits.in_use, permits.waiting) == (0, 0)
    async with permits.one(0):
        late = asyncio.create_task(permits.one(1).__aenter__())
        await eventually(lambda: permits.waiting)
    late.cancel()  # the permit was given to it just now, and it has not run since
    await asyncio.wait({late})
    assert late.cancelled()
    assert permits.in_use == 0


@given(st.lists(st.integers(0, 100), max_size=30), st.integers(1, 6))
def test_there_is_always_one_and_never_more_than_the_most(shares: list[int], most: int):
    held = [0]
    permits = Permits(most, lambda: [stats(held=held[0])])
    for held[0] in shares:
        permits.adjust()
        assert 1 <= permits.limit <= most
