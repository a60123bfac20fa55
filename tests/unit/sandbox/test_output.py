import asyncio
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from temper.sandbox.engine import output
from temper.sandbox.engine.output import CappedBuffer, PipeReader


@given(st.lists(st.binary(max_size=50), max_size=30), st.integers(0, 64))
def test_what_fits_is_kept_whole_and_what_does_not_is_cut_in_the_middle(
    pieces: list[bytes], cap: int
) -> None:
    buffer = CappedBuffer(cap)
    for piece in pieces:
        buffer.write(piece)
    whole = b"".join(pieces)
    assert buffer.total == len(whole)
    if len(whole) <= cap:
        assert not buffer.truncated
        assert buffer.value() == whole
        return
    head, tail = cap - cap // 2, cap // 2
    assert buffer.truncated
    assert buffer.value().startswith(whole[:head] + b"\n[... ")
    assert buffer.value().endswith(b" bytes cut ...]\n" + whole[len(whole) - tail :])


def test_memory_stays_flat_whatever_is_written() -> None:
    buffer = CappedBuffer(1000)
    for _ in range(1000):
        buffer.write(b"x" * 10_000)
    assert sum(map(len, buffer._tail)) + len(buffer._head) < 12_000
    assert buffer.total == 10_000_000


async def test_draining_takes_what_lies_in_the_pipe_and_does_not_wait_for_other_writers() -> None:
    read_end, write_end = os.pipe()
    reader = PipeReader(read_end, 100, lambda: None)
    os.write(write_end, b"abc")
    reader.drain()
    assert reader.buffer.value() == b"abc"
    reader.close()
    reader.close()
    os.close(write_end)


async def test_a_flood_is_reported_while_it_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_FLOOD_BYTES", 1000)
    read_end, write_end = os.pipe()
    flooded = asyncio.Event()
    reader = PipeReader(read_end, 64, flooded.set)
    os.write(write_end, b"x" * 60_000)
    async with asyncio.timeout(10):
        await flooded.wait()
    assert reader.buffer.truncated
    reader.close()
    os.close(write_end)
