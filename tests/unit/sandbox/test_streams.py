"""Output that waits to be read: in order, once, bounded."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from temper.runtime.clock import FakeClock, SystemClock
from temper.runtime.errors import Rejected, Stale
from temper.sandbox import streams
from temper.sandbox.desk import Desk
from temper.sandbox.engine.base import Stream
from temper.sandbox.streams import OutputWindow

OUT = Stream.STDOUT


async def test_what_came_is_read_in_order_and_again_with_the_same_offset() -> None:
    window = OutputWindow(FakeClock())
    await window.sink(OUT, b"one")
    await window.sink(Stream.STDERR, b"two")
    first = await window.read(0, 0)
    assert first == ([(OUT, b"one"), (Stream.STDERR, b"two")], 6, False)
    assert await window.read(0, 0) == first
    assert await window.read(6, 0) == ([], 6, False)
    window.end()
    assert await window.read(6, 0) == ([], 6, True)


async def test_an_offset_that_was_let_go_of_is_stale() -> None:
    window = OutputWindow(FakeClock())
    await window.sink(OUT, b"abcdef")
    assert (await window.read(4, 0))[0] == [(OUT, b"ef")]
    for offset in (3, 7):
        with pytest.raises(Stale, match="offset"):
            await window.read(offset, 0)


async def test_a_full_window_holds_the_writer_until_its_reader_has_some() -> None:
    window = OutputWindow(SystemClock(), size=4)
    await window.sink(OUT, b"12345")
    writing = asyncio.create_task(window.sink(OUT, b"6"))
    assert (await window.read(0, 0))[0] == [(OUT, b"12345")]
    assert not writing.done()
    await window.read(2, 0)
    await writing
    assert (await window.read(5, 0))[0] == [(OUT, b"6")]


async def test_an_end_frees_a_writer_who_waits() -> None:
    window = OutputWindow(FakeClock(), size=1)
    await window.sink(OUT, b"1")
    writing = asyncio.create_task(window.sink(OUT, b"2"))
    await asyncio.sleep(0)
    window.end()
    await writing
    assert await window.read(0, 0) == ([(OUT, b"1")], 1, True)


async def test_a_reader_in_a_hurry_gets_what_is_there() -> None:
    window = OutputWindow(FakeClock())
    reading = asyncio.create_task(window.read(0, 30.0))
    await asyncio.sleep(0)
    window.hurry()
    assert await reading == ([], 0, False)
    assert await window.read(0, 30.0) == ([], 0, False)
    await window.sink(OUT, b"last")
    assert await window.read(0, 30.0) == ([(OUT, b"last")], 4, False)


async def test_nobody_waits_in_a_hurry_for_a_stream_that_may_come() -> None:
    desk = Desk(FakeClock())
    waiting = [asyncio.create_task(desk.window("later", 30.0)) for _ in range(2)]
    await asyncio.sleep(0)
    desk.hurry()
    for each in [*waiting, desk.window("never", 30.0)]:
        with pytest.raises(Rejected, match="nothing streams"):
            await each


async def test_a_reader_waits_for_news_and_no_longer() -> None:
    clock = FakeClock()
    window = OutputWindow(clock)
    waiting = asyncio.create_task(window.read(0, 5))
    await clock.advance(4)
    assert not waiting.done()
    await window.sink(OUT, b"x")
    assert (await waiting)[0] == [(OUT, b"x")]
    waiting = asyncio.create_task(window.read(1, 5))
    await clock.advance(6)
    assert await waiting == ([], 1, False)


async def test_one_answer_fits_a_message() -> None:
    window = OutputWindow(FakeClock(), size=4 << 20)
    await window.sink(OUT, bytes(streams.REPLY + 5))
    chunks, offset, ended = await window.read(0, 0)
    assert (sum(len(data) for _, data in chunks), offset, ended) == (streams.REPLY, streams.REPLY, False)
    assert (await window.read(offset, 0))[1] == streams.REPLY + 5


@given(st.lists(st.binary(min_size=1, max_size=9), max_size=20), st.data())
async def test_nothing_is_lost_and_nothing_comes_twice(pieces: list[bytes], data: st.DataObject) -> None:
    window = OutputWindow(FakeClock(), size=1 << 20)
    got, offset = b"", 0
    for piece in pieces:
        await window.sink(OUT, piece)
        if data.draw(st.booleans()):
            chunks, end, _ = await window.read(offset, 0)
            whole = b"".join(each for _, each in chunks)
            kept = data.draw(st.integers(0, len(whole)))
            got, offset = got + whole[:kept], offset + kept
            assert end >= offset
    window.end()
    chunks, _, ended = await window.read(offset, 0)
    assert got + b"".join(each for _, each in chunks) == b"".join(pieces)
    assert ended
