"""Watches of files: bounded, in order, listening once begun, gone with the sandbox."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from temper.runtime.clock import FakeClock
from temper.runtime.errors import Exhausted, Rejected, Stale
from temper.sandbox.engine.base import Change
from temper.sandbox.engine.entries import ChangeKind
from temper.sandbox.engine.fake import FakeBackend
from temper.sandbox.watches import ChangeWindow, Watches


def created(number: int) -> Change:
    return Change(ChangeKind.CREATED, f"/work/{number}")


class Watched:
    """Stands for a sandbox; one change for each name in `names`, then as `after` says."""

    def __init__(self, *names: int, error: Exception | None = None) -> None:
        self._names = names
        self._error = error

    async def watch(self, path: str) -> AsyncIterator[Change]:
        if self._error:
            raise self._error
        for name in self._names:
            yield created(name)


async def test_changes_are_let_go_of_only_once_they_were_received() -> None:
    window = ChangeWindow(FakeClock(), "/work")
    for number in range(3):
        window.put(created(number))
    first = await window.read(0, 0.0)
    assert first == ([created(0), created(1), created(2)], 3, False)
    assert await window.read(0, 0.0) == first
    assert await window.read(2, 0.0) == ([created(2)], 3, False)
    with pytest.raises(Stale, match="offset"):
        await window.read(1, 0.0)
    with pytest.raises(Stale, match="offset"):
        await window.read(4, 0.0)


async def test_a_full_window_says_once_that_more_was_lost_and_takes_more_when_read() -> None:
    window = ChangeWindow(FakeClock(), "/top", size=2)
    for number in range(9):
        window.put(created(number))
    changes, offset, _ = await window.read(0, 0.0)
    assert changes == [created(0), created(1), Change(ChangeKind.LOST, "/top")]
    await window.read(offset, 0.0)
    window.put(created(9))
    assert (await window.read(offset, 0.0))[0] == [created(9)]


async def test_the_end_shows_only_when_all_was_handed_out() -> None:
    window = ChangeWindow(FakeClock(), "/work")
    for number in range(1025):
        window.put(created(number))
    window.end()
    window.put(created(-1))
    changes, offset, ended = await window.read(0, 30.0)
    assert (len(changes), ended) == (1024, False)
    assert await window.read(offset, 30.0) == ([created(1024)], 1025, True)


async def test_a_name_begins_one_watch_and_an_ended_one_makes_room() -> None:
    watches = Watches(FakeClock())
    sandbox = Watched(1)
    window = await watches.begin(sandbox, "w", "")  # type: ignore[arg-type] - only `watch` is asked for
    assert await watches.begin(sandbox, "w", "") is window  # type: ignore[arg-type] - as above
    assert await window.read(0, 0.0) == ([created(1)], 1, True)
    for number in range(20):
        await watches.begin(sandbox, str(number), "")  # type: ignore[arg-type] - as above
    await watches.close("nobody")


async def test_a_watch_that_cannot_begin_says_why_and_leaves_nothing() -> None:
    watches = Watches(FakeClock())
    broken = Watched(error=Rejected("no such directory"))
    with pytest.raises(Rejected, match="no such"):
        await watches.begin(broken, "w", "/nowhere")  # type: ignore[arg-type] - only `watch` is asked for
    fake = FakeBackend(slots=1)
    await fake.start()
    with pytest.raises(Rejected, match="this backend has no"):
        await watches.begin(await fake.create("a", fake_limits()), "w", "")
    await fake.close()


def fake_limits():
    from tests.unit.sandbox.worlds import LIMITS

    return LIMITS


async def test_too_many_live_watches_are_refused_and_clearing_ends_them(tmp_path: Path) -> None:
    class Endless(Watched):
        async def watch(self, path: str) -> AsyncIterator[Change]:
            import asyncio

            await asyncio.Event().wait()
            yield created(0)

    watches = Watches(FakeClock())
    windows = [await watches.begin(Endless(), str(number), "") for number in range(16)]  # type: ignore[arg-type] - as above
    with pytest.raises(Exhausted, match="watches"):
        await watches.begin(Endless(), "one more", "")  # type: ignore[arg-type] - as above
    await watches.close("0")
    await watches.begin(Endless(), "one more", "")  # type: ignore[arg-type] - as above
    watches.clear()
    assert all(window.ended for window in windows)
