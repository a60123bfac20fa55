from __future__ import annotations

import asyncio

import pytest

from temper.runtime.clock import FakeClock, SystemClock


async def test_sleepers_wake_in_order_of_their_time():
    clock = FakeClock()
    woken: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((name, clock.monotonic()))

    tasks = [asyncio.ensure_future(sleeper(name, s)) for name, s in (("c", 3), ("a", 1), ("b", 2))]
    await clock.advance(2.5)
    assert woken == [("a", 1), ("b", 2)]
    await clock.advance(0.5)
    assert woken[-1] == ("c", 3)
    await asyncio.gather(*tasks)


async def test_what_a_sleeper_sets_off_happens_before_later_sleepers_wake():
    clock = FakeClock()
    history: list[float] = []

    async def chain() -> None:
        for _ in range(5):
            await clock.sleep(1)
            history.append(clock.monotonic())

    task = asyncio.ensure_future(chain())
    await clock.advance(10)
    assert history == [1, 2, 3, 4, 5]
    await task


async def test_wall_time_moves_with_the_clock():
    clock = FakeClock(start=100.0)
    await clock.advance(5)
    assert (clock.now(), clock.monotonic()) == (105.0, 5.0)


async def test_a_timeout_fires_when_its_time_has_come():
    clock = FakeClock()

    async def hang() -> None:
        async with clock.timeout(2):
            await asyncio.Event().wait()

    task = asyncio.ensure_future(hang())
    await clock.advance(1.9)
    assert not task.done()
    await clock.advance(0.2)
    with pytest.raises(TimeoutError):
        await task


async def test_a_body_that_ends_in_time_is_not_disturbed_later():
    clock = FakeClock()
    async with clock.timeout(1):
        pass
    await clock.advance(5)


async def test_a_timeout_of_none_waits_for_ever():
    clock = FakeClock()
    done = asyncio.Event()

    async def wait() -> None:
        async with clock.timeout(None):
            await done.wait()

    task = asyncio.ensure_future(wait())
    await clock.advance(1e6)
    assert not task.done()
    done.set()
    await task


async def test_an_outer_cancellation_is_not_taken_for_a_timeout():
    clock = FakeClock()

    async def hang() -> None:
        async with clock.timeout(2):
            await asyncio.Event().wait()

    task = asyncio.ensure_future(hang())
    await clock.settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_timeout_that_is_over_already_fires_at_once():
    clock = FakeClock()

    async def hang() -> None:
        async with clock.timeout(0):
            await asyncio.Event().wait()

    task = asyncio.ensure_future(hang())
    await clock.advance(0)
    with pytest.raises(TimeoutError):
        await task


async def test_the_system_clock_moves_by_itself():
    clock = SystemClock()
    before = clock.monotonic()
    await clock.sleep(0.001)
    assert clock.monotonic() > before
    with pytest.raises(TimeoutError):
        async with clock.timeout(0):
            await asyncio.Event().wait()
