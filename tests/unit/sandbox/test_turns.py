"""The queue for places: order, time, and turns that are not lost with those who do not take them."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from temper.runtime.clock import FakeClock
from temper.sandbox.turns import Turns


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_free_place_wakes_only_who_has_waited_longest() -> None:
    turns = Turns(FakeClock())
    first, second = (asyncio.create_task(turns.wait(10.0)) for _ in range(2))
    await settle()
    turns.free()
    assert await first
    await settle()
    assert not second.done()
    turns.free()
    assert await second


async def test_who_was_overtaken_waits_at_the_front() -> None:
    turns = Turns(FakeClock())
    patient = asyncio.create_task(turns.wait(10.0))
    await settle()
    overtaken = asyncio.create_task(turns.wait(10.0, again=True))
    await settle()
    turns.free()
    assert await overtaken
    assert not patient.done()
    turns.all()
    assert await patient


async def test_the_wait_ends_with_its_time_and_leaves_no_one_in_the_queue() -> None:
    clock = FakeClock()
    turns = Turns(clock)
    late = asyncio.create_task(turns.wait(5.0))
    await settle()
    await clock.advance(5.1)
    assert not await late
    assert len(turns) == 0
    assert not await turns.wait(clock.monotonic())


async def test_a_turn_of_one_who_was_called_off_is_the_next_ones() -> None:
    turns = Turns(FakeClock())
    gone, next_one = (asyncio.create_task(turns.wait(10.0)) for _ in range(2))
    await settle()
    turns.free()
    gone.cancel()
    assert await next_one


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(["wait", "again", "free", "cancel"]), max_size=30))
def test_as_many_are_woken_as_places_came_while_somebody_waited(steps: list[str]) -> None:
    async def play() -> None:
        turns, waiting, woken, freed = Turns(FakeClock()), list[asyncio.Task[bool]](), 0, 0
        for step in steps:
            if step == "free":
                freed += bool(len(turns))
                turns.free()
            elif step == "cancel" and waiting:
                waiting.pop(0).cancel()
            elif step in {"wait", "again"}:
                waiting.append(asyncio.create_task(turns.wait(10.0, again=step == "again")))
            await settle()
            woken += sum(each.done() for each in waiting)
            waiting = [each for each in waiting if not each.done()]
        assert woken == freed
        assert len(turns) == len(waiting)
        for each in waiting:
            each.cancel()

    asyncio.run(play())
