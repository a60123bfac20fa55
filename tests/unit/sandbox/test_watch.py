"""The wait for one command: what is left of it after a kill for memory is not waited for until the wall."""

import asyncio

import pytest

from temper.sandbox.engine import watch
from temper.sandbox.engine.base import Limits
from temper.sandbox.engine.verdict import Counters, Ending
from temper.sandbox.engine.watch import Watch

LIMITS = Limits(wall_s=600.0)


class Meter:
    """Counts `kills` more kills with each reading, the first one included."""

    def __init__(self, kills: int) -> None:
        self._kills, self._counted = kills, 7

    def counters(self) -> Counters:
        self._counted += self._kills
        return Counters(oom_kills=self._counted)

    def reset_peak(self) -> None:
        pass


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_MEMORY_POLL_S", 0.005)


def never() -> "asyncio.Future[None]":
    return asyncio.get_running_loop().create_future()


async def test_what_lingers_after_a_kill_for_memory_is_ended_long_before_the_wall() -> None:
    assert await Watch(never(), Meter(1), LIMITS).wait(never()) is Ending.MEMORY


async def test_a_command_that_ends_by_itself_after_a_kill_has_finished() -> None:
    ended = never()
    ended.set_result(None)
    assert await Watch(never(), Meter(1), LIMITS).wait(ended) is Ending.FINISHED


async def test_kills_before_the_command_are_not_its_own() -> None:
    watching = Watch(never(), Meter(0), Limits(wall_s=0.2))
    assert await watching.wait(never()) is Ending.WALL
