"""Seats without a sandbox, which a test holds up, fails and counts."""

import asyncio
from types import TracebackType
from typing import Self

from temper.api.sandbox.v1 import control_pb2
from temper.runtime.errors import TemperError


class Seats:
    """Makes them."""

    def __init__(self) -> None:
        self.made = 0
        """Seats that were entered, or tried to be."""
        self.calls = 0
        """Calls that have come."""
        self.taken: set[FakeSeat] = set()
        """Entered and not left."""
        self.enter = asyncio.Event()
        """A seat is entered once this is set."""
        self.leave = asyncio.Event()
        """A seat is left once this is set."""
        self.answer = asyncio.Event()
        """A call is answered once this is set."""
        self.fault: TemperError | None = None
        """What entering one raises."""
        self.enter.set()
        self.leave.set()
        self.answer.set()

    def seat(self) -> "FakeSeat":
        return FakeSeat(self)


class FakeSeat:
    def __init__(self, seats: Seats) -> None:
        self._seats = seats

    async def __aenter__(self) -> Self:
        self._seats.made += 1
        await self._seats.enter.wait()
        if self._seats.fault is not None:
            raise self._seats.fault
        self._seats.taken.add(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._seats.leave.wait()
        self._seats.taken.discard(self)

    async def call(self, name: str, arguments: str) -> control_pb2.CallToolResponse:
        self._seats.calls += 1
        await self._seats.answer.wait()
        return control_pb2.CallToolResponse(observation=f"{name} {arguments}")
