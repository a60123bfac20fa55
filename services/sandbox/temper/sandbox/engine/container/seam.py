"""What a kind of container must do, so that the rest is shared."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

from temper.sandbox.engine.command import Stream
from temper.sandbox.engine.files import Files
from temper.sandbox.engine.watch import Meter


class Program(Protocol):
    """A program that runs in a container. What it says is pulled, so a slow reader slows it."""

    @property
    def ended(self) -> "asyncio.Future[int | None]":
        """Its exit status as the runtime says it, 128 + n for signal n; None if the runtime cannot tell."""
        ...

    async def read(self) -> tuple[Stream, bytes] | None:
        """The next output; None once there is no more."""
        ...

    async def write(self, data: bytes) -> None:
        """Standard input; silently nothing once the program has gone."""
        ...

    async def finish_input(self) -> None:
        """The end of its standard input."""
        ...

    async def close(self) -> None:
        """Let go of its streams. It may run on."""
        ...


class Container(Protocol):
    """A live container whose first process does nothing but reap."""

    @property
    def died(self) -> "asyncio.Future[None]":
        """Done once it no longer runs."""
        ...

    @property
    def meter(self) -> Meter:
        """Counters of all its processes."""
        ...

    @property
    def files(self) -> Files | None:
        """Its writable trees, where they are open on this host."""
        ...

    @property
    def python(self) -> Sequence[str]:
        """The interpreter inside, with options."""
        ...

    @property
    def environment(self) -> Mapping[str, str]:
        """What every program inside finds in its environment."""
        ...

    async def start(self, argv: Sequence[str], env: Mapping[str, str], *, stdin: bool) -> Program:
        """Start a program as the sandbox's user. Raises Unavailable."""
        ...

    @property
    def network(self) -> int:
        """Descriptor of a process in its network, where that is one of this host's kernel; else -1."""
        ...

    async def sweep(self, number: int, spared: frozenset[int] = frozenset()) -> None:
        """Send a signal to every process but the first and `spared` with what is below them. Raises Unavailable."""
        ...

    async def pause(self) -> None:
        """Hold every process still; asked only of a container with `files`. Raises Unavailable."""
        ...

    async def resume(self) -> None:
        """Let them go on. Raises Unavailable."""
        ...

    async def remove(self) -> None:
        """End it, and leave nothing. Idempotent."""
        ...
