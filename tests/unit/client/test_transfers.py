"""Large copies into a sandbox whose broker goes away half-way: they end, and say why. The host is a double that never answers."""

import asyncio
from typing import Any

import pytest

from temper.api.sandbox.v1 import sandbox_pb2
from temper.client.sdk import transfers
from temper.client.sdk.sandbox import Place
from temper.runtime.errors import Rejected, Unavailable

LARGE = bytes(transfers.PIECE + 1)


class LostHalfWay:
    """Takes `pieces` pieces; the program then waits for more until somebody ends it."""

    def __init__(self, pieces):
        self.left, self.closed = pieces, []

    async def start(self, place, argv, *, terminal):
        assert not terminal
        return "put-1"

    async def type(self, place, program, data):
        if not self.left:
            raise Unavailable("the broker is away")
        self.left -= 1

    async def output(self, place, program):
        await asyncio.Event().wait()
        yield None

    async def close(self, place, program):
        self.closed.append(program)
        return sandbox_pb2.CommandResult(error="ended by its caller")


@pytest.mark.parametrize("pieces", [0, 1])
async def test_a_program_that_gets_no_more_input_is_not_waited_for_for_ever(monkeypatch, pieces):
    monkeypatch.setattr(transfers, "_LAST_WORDS_S", 0.0)
    client: Any = LostHalfWay(pieces)
    with pytest.raises(Rejected, match=r"/work/large: ended by its caller"):
        await transfers.put_file(client, Place("host", "box"), "/work/large", LARGE, 0o644)
    assert client.closed == ["put-1"]
