"""One fork: a fresh sandbox with the files of a snapshot, or why there is none."""

from collections.abc import Awaitable
from typing import Protocol

from temper.runtime.errors import TemperError
from temper.sandbox.engine.base import Fork, Sandbox


class Fillable(Sandbox, Protocol):
    """A sandbox that takes the files of a snapshot."""

    async def fill(self, snapshot: str) -> None:
        """Put them in place. Raises TemperError."""
        ...


async def forked(fresh: Awaitable[Fillable], snapshot: str, name: str) -> Fork:
    """A fresh sandbox with the files of a snapshot; what fails is an outcome and leaves nothing."""
    try:
        sandbox = await fresh
    except TemperError as error:
        return Fork(name, None, error.message)
    try:
        await sandbox.fill(snapshot)
    except TemperError as error:
        await sandbox.destroy()
        return Fork(name, None, error.message)
    return Fork(name, sandbox)
