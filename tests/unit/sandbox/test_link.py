"""The line to a sandbox's init, with the test on its far side: whoever stops there must not stop the host."""

import asyncio
import socket
import struct
from collections.abc import Iterator

import pytest

from temper.sandbox.engine import link as links
from temper.sandbox.engine.guest import wire
from temper.sandbox.engine.link import Link
from temper.sandbox.engine.watch import ReportedMeter


@pytest.fixture
def far() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    yield ours, theirs
    theirs.close()


async def test_half_a_message_holds_nobody_up(far: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = far
    link = Link(ours, ReportedMeter())
    heard = link.expect("killed")
    frame = wire.encode({"event": "killed"})
    for at in range(len(frame)):
        assert not heard.done()
        theirs.sendall(frame[at : at + 1])
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    async with asyncio.timeout(10):
        assert (await heard)["event"] == "killed"
    link.close()


async def test_a_line_that_nobody_reads_is_given_up(
    far: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "_SEND_TIME", struct.pack("@ll", 0, 10_000))
    link = Link(far[0], ReportedMeter())
    link.send({"op": "spawn", "argv": ["x" * 1000] * 4000})  # more than the line holds
    link.close()


async def test_nonsense_ends_the_line(far: tuple[socket.socket, socket.socket]) -> None:
    link = Link(far[0], ReportedMeter())
    far[1].sendall(b"\xff" * 64)
    async with asyncio.timeout(10):
        await link.died
    link.close()
