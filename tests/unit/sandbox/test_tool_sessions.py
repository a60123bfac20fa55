"""Sessions of the tools over HTTP: as many seats as sessions, never more than allowed, none after the end."""

import asyncio

import pytest

pytest.importorskip("mcp", reason="the extra mcp is not installed")

from tests.unit.sandbox.seats import Seats

from temper.runtime.errors import Exhausted, Rejected, Unavailable
from temper.runtime.testing import eventually
from temper.sandbox.toolsessions import ToolSessions

LONG_S = 3600.0


def named(transport: object) -> str:
    name = getattr(transport, "mcp_session_id", None)
    assert isinstance(name, str)
    return name


async def test_a_session_has_a_seat_from_its_begin_to_its_end() -> None:
    seats = Seats()
    sessions = ToolSessions(seats.seat, 2, LONG_S)
    first = named(await sessions.begin())
    second = named(await sessions.begin())
    assert first != second
    assert len(seats.taken) == 2
    await sessions.end(first)
    assert (len(seats.taken), len(sessions), sessions.find(first)) == (1, 1, None)
    assert sessions.find(second) is not None
    await sessions.end(first)
    await sessions.end("never")
    await sessions.close()
    assert (seats.taken, len(sessions)) == (set(), 0)


async def test_a_session_that_is_ending_cannot_be_found_but_counts_until_its_sandbox_is_gone() -> None:
    seats = Seats()
    sessions = ToolSessions(seats.seat, 1, LONG_S)
    name = named(await sessions.begin())
    seats.leave.clear()
    ending = asyncio.create_task(sessions.end(name))
    await eventually(lambda: sessions.find(name) is None)
    with pytest.raises(Exhausted, match="--sessions"):
        await sessions.begin()
    seats.leave.set()
    await ending
    await sessions.begin()
    await sessions.close()
    assert seats.made == 2


async def test_a_session_that_is_still_being_made_counts_too() -> None:
    seats = Seats()
    seats.enter.clear()
    sessions = ToolSessions(seats.seat, 1, LONG_S)
    beginning = asyncio.create_task(sessions.begin())
    await eventually(lambda: seats.made == 1)
    with pytest.raises(Exhausted):
        await sessions.begin()
    seats.enter.set()
    await beginning
    await sessions.close()
    assert not seats.taken


async def test_a_seat_that_cannot_be_had_leaves_its_place_free() -> None:
    seats = Seats()
    seats.fault = Rejected("no such isolation", field="min_isolation")
    sessions = ToolSessions(seats.seat, 1, LONG_S)
    for _ in range(3):
        with pytest.raises(Rejected, match="no such isolation"):
            await sessions.begin()
    seats.fault = None
    await sessions.begin()
    await sessions.close()
    assert seats.made == 4


async def test_a_session_whose_sandbox_surfaces_during_the_stop_is_not_begun() -> None:
    seats = Seats()
    seats.enter.clear()
    sessions = ToolSessions(seats.seat, 1, LONG_S)
    beginning = asyncio.create_task(sessions.begin())
    await eventually(lambda: seats.made == 1)
    (session,) = sessions._sessions.values()
    closing = asyncio.create_task(sessions.close())
    await eventually(lambda: session.transport.is_terminated)
    seats.enter.set()
    await closing
    with pytest.raises(Unavailable, match="stopping"):
        await beginning
    with pytest.raises(Unavailable, match="stopping"):
        await sessions.begin()
    assert (len(seats.taken), len(sessions), seats.made) == (0, 0, 1)


async def test_a_session_whose_beginner_was_cancelled_ends_with_the_server() -> None:
    seats = Seats()
    seats.enter.clear()
    sessions = ToolSessions(seats.seat, 1, LONG_S)
    beginning = asyncio.create_task(sessions.begin())
    await eventually(lambda: seats.made == 1)
    beginning.cancel()
    seats.enter.set()
    await sessions.close()
    assert (len(seats.taken), len(sessions)) == (0, 0)
