"""The line to a sandbox's init, with the test on its far side: whoever stops there must not stop the host."""

import asyncio
import os
import socket
from collections.abc import Iterator

import pytest

from temper.sandbox.engine import link as links
from temper.sandbox.engine.guest import wire
from temper.sandbox.engine.link import Link
from temper.sandbox.engine.watch import ReportedMeter

LARGE = {"op": "spawn", "argv": ["x" * 1000] * 1500}
"""More than a line holds."""


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
    monkeypatch.setattr(links, "_STUCK_S", 0.01)
    link = Link(far[0], ReportedMeter())
    link.send(LARGE)
    async with asyncio.timeout(30):
        await link.died
    link.close()


async def test_what_does_not_fit_the_line_follows_in_order_with_its_descriptors(
    far: tuple[socket.socket, socket.socket],
) -> None:
    link = Link(far[0], ReportedMeter())
    readers, writers = zip(*(os.pipe() for _ in range(3)), strict=True)
    for number, writer in enumerate(writers):
        link.send(LARGE | {"number": number}, (writer,))
        os.close(writer)  # the sender's business, whether it has gone out yet or not

    def receive() -> None:
        for number, reader in enumerate(readers):
            received = wire.receive(far[1])
            assert received is not None
            message, descriptors = received
            assert message == LARGE | {"number": number}
            os.write(descriptors[0], b"%d" % number)
            os.close(descriptors[0])
            assert os.read(reader, 10) == b"%d" % number
            assert os.read(reader, 10) == b""  # no copy of it is left on our side
            os.close(reader)

    async with asyncio.timeout(60):
        await asyncio.to_thread(receive)
    assert not link.died.done()
    link.close()


async def test_a_line_that_is_closed_while_full_keeps_no_descriptor(
    far: tuple[socket.socket, socket.socket],
) -> None:
    link = Link(far[0], ReportedMeter())
    link.send(LARGE)
    reader, writer = os.pipe()
    link.send(LARGE, (writer,))
    os.close(writer)
    link.close()
    assert os.read(reader, 1) == b""
    os.close(reader)


async def test_nonsense_ends_the_line(far: tuple[socket.socket, socket.socket]) -> None:
    link = Link(far[0], ReportedMeter())
    far[1].sendall(b"\xff" * 64)
    async with asyncio.timeout(10):
        await link.died
    link.close()
