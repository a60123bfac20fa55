"""A socket inside a sandbox's network, held outside: the one door of a sandbox that has no network.

A socket belongs to the network namespace that it was made in, whoever holds it. A thread of this service steps into the
sandbox's namespace, makes a socket that listens on its loopback, and ends; what connects to it comes from that sandbox and
from nowhere else.
"""

import asyncio
import errno
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol, runtime_checkable

from temper.runtime.errors import Unavailable
from temper.sandbox.engine.guest import syscalls

PORT: Final = 3128
"""Where a sandbox finds its way out, on its own loopback."""
_BACKLOG: Final = 64


@runtime_checkable
class Doored(Protocol):
    """A sandbox that can have a door. Backends whose sandboxes are this declare the networks "allow" and "open"."""

    @property
    def place(self) -> object:
        """Another object after each reset or restore: doors of the one before lead nowhere."""
        ...

    async def listen(self, port: int) -> socket.socket:
        """A socket that listens on the sandbox's own loopback. Raises Unavailable."""
        ...


async def listen_inside(pidfd: int, port: int) -> socket.socket:
    """As `Doored.listen`, for the network of the process behind `pidfd`. Needs root. Source: setns(2), since Linux 5.8."""
    with ThreadPoolExecutor(1, "temper-door") as stepping_in:  # a thread of its own: it never comes back out
        try:
            return await asyncio.get_running_loop().run_in_executor(stepping_in, _step_in, pidfd, port)
        except OSError as error:
            reason = errno.errorcode.get(error.errno or 0, "") or error.strerror
            raise Unavailable(f"cannot open a door into the sandbox's network: {reason}") from error


def _step_in(pidfd: int, port: int) -> socket.socket:
    syscalls.enter_network(pidfd)
    return socket.create_server(("127.0.0.1", port), backlog=_BACKLOG)
