from __future__ import annotations

import asyncio

import pytest

from temper.runtime.clock import FakeClock
from temper.runtime.errors import Exhausted
from temper.runtime.supervisor import GaveUp, Restarts, Supervisor


class Flaky:
    """Work that fails `failures` times and then waits for ever."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.starts = 0

    async def __call__(self) -> None:
        self.starts += 1
        if self.starts <= self.failures:
            raise RuntimeError(f"failure {self.starts}")
        await asyncio.Event().wait()


async def test_work_that_fails_is_restarted(fake_clock: FakeClock):
    work = Flaky(failures=3)
    supervisor = Supervisor(clock=fake_clock)
    supervisor.start("work", work)
    await fake_clock.advance(10)
    assert work.starts == 4
    assert supervisor.running == ["work"]
    await supervisor.stop()


async def test_a_failure_does_not_touch_other_work(fake_clock: FakeClock):
    bad, good = Flaky(failures=2), Flaky(failures=0)
    supervisor = Supervisor(clock=fake_clock)
    supervisor.start("bad", bad)
    supervisor.start("good", good)
    await fake_clock.advance(10)
    assert (bad.starts, good.starts) == (3, 1)
    await supervisor.stop()


async def test_pauses_grow_up_to_their_bound(fake_clock: FakeClock):
    starts: list[float] = []

    async def work() -> None:
        starts.append(fake_clock.monotonic())
        raise RuntimeError

    limit = Restarts(most=5, within_s=1000, first_pause_s=1, longest_pause_s=4)
    supervisor = Supervisor(clock=fake_clock, restarts=limit)
    supervisor.start("work", work)
    await fake_clock.advance(100)
    assert starts == [0, 1, 3, 7, 11, 15]
    await supervisor.stop()


async def test_too_many_failures_end_the_wait_with_their_cause(fake_clock: FakeClock):
    supervisor = Supervisor(clock=fake_clock, restarts=Restarts(most=2, within_s=60))
    supervisor.start("broken", Flaky(failures=100))
    waiting = asyncio.ensure_future(supervisor.wait())
    await fake_clock.advance(60)
    with pytest.raises(GaveUp, match="broken failed more than 2 times") as caught:
        await waiting
    assert str(caught.value.__cause__) == "failure 3"
    await supervisor.stop()


async def test_a_verdict_before_the_wait_is_not_lost(fake_clock: FakeClock):
    supervisor = Supervisor(clock=fake_clock, restarts=Restarts(most=0))
    supervisor.start("broken", Flaky(failures=1))
    await fake_clock.settle()
    with pytest.raises(GaveUp):
        await supervisor.wait()
    await supervisor.stop()


async def test_failures_outside_the_window_do_not_count(fake_clock: FakeClock):
    starts = 0

    async def work() -> None:
        nonlocal starts
        starts += 1
        await fake_clock.sleep(100)
        raise RuntimeError

    supervisor = Supervisor(clock=fake_clock, restarts=Restarts(most=1, within_s=50))
    supervisor.start("slow to fail", work)
    await fake_clock.advance(1000)
    assert starts >= 9
    assert supervisor.running == ["slow to fail"]
    await supervisor.stop()


async def test_work_that_returns_is_finished_and_its_name_free(fake_clock: FakeClock):
    done: list[str] = []

    async def work() -> None:
        done.append("x")

    supervisor = Supervisor(clock=fake_clock)
    supervisor.start("once", work)
    await fake_clock.settle()
    assert (done, supervisor.running) == (["x"], [])
    supervisor.start("once", work)
    await fake_clock.settle()
    assert done == ["x", "x"]


async def test_a_name_is_taken_while_its_work_runs(fake_clock: FakeClock):
    supervisor = Supervisor(clock=fake_clock)
    supervisor.start("work", Flaky(failures=0))
    with pytest.raises(Exhausted, match="runs already"):
        supervisor.start("work", Flaky(failures=0))
    await supervisor.cancel("work")
    supervisor.start("work", Flaky(failures=0))
    await supervisor.stop()


async def test_stopping_ends_the_newest_work_first_and_takes_no_more(fake_clock: FakeClock):
    ended: list[str] = []

    def work(name: str):
        async def run() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(name)

        return run

    supervisor = Supervisor(clock=fake_clock)
    for name in "abc":
        supervisor.start(name, work(name))
    await fake_clock.settle()
    await supervisor.stop()
    assert ended == ["c", "b", "a"]
    with pytest.raises(Exhausted, match="stopping"):
        supervisor.start("late", work("late"))


async def test_stopping_cuts_a_pause_short(fake_clock: FakeClock):
    supervisor = Supervisor(clock=fake_clock, restarts=Restarts(first_pause_s=1000, longest_pause_s=1000))
    supervisor.start("work", Flaky(failures=1))
    await fake_clock.settle()
    await supervisor.stop()
    assert supervisor.running == []


async def test_work_that_swallows_a_cancellation_once_still_ends(
    fake_clock: FakeClock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("temper.runtime.supervisor.CANCEL_AGAIN_S", 0.01)

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.Event().wait()

    supervisor = Supervisor(clock=fake_clock)
    supervisor.start("stubborn", stubborn)
    await fake_clock.settle()
    await supervisor.stop()
    assert supervisor.running == []
