"""The host's end of the launcher process: start it, ask it for sandboxes, notice when it dies."""

import asyncio
import functools
import signal
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import temper.sandbox
from temper.runtime.errors import TemperError, Unavailable
from temper.sandbox.engine.guest import wire
from temper.sandbox.engine.guest.launcher import BIND_NOW

_START_S: Final = 20.0
_STOP_S: Final = 5.0
_STARTER: Final = "import sys; sys.path.append({path!r}); from temper.sandbox.engine.guest import launcher; launcher.main({fd})"


@dataclass(frozen=True, slots=True)
class Python:
    """The interpreter that sandboxes run. Example: `Python("/usr/bin/python3.11", "/usr", ("/usr/lib/python3.11",))`."""

    executable: str
    """Program."""
    prefix: str
    """Directory that must be visible inside."""
    search_path: tuple[str, ...]
    """Where its standard library lies."""


@functools.cache
def base_python() -> Python:
    """The interpreter this process was made from, outside any virtual environment."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    executable = Path(sys.base_prefix) / "bin" / f"python{version}"
    if not executable.exists():
        executable = Path(sys.executable)
    library = sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix, "base": sys.base_prefix})
    return Python(str(executable), sys.base_prefix, (library, f"{library}/lib-dynload"))


def guest_environment(python: Python, work: str) -> dict[str, str]:
    """All that a program in a sandbox finds in its environment."""
    binaries = str(Path(python.executable).parent)
    return {
        "PATH": f"{binaries}:/usr/local/bin:/usr/bin:/bin",
        "HOME": work,
        "LANG": "C.UTF-8",
        "TMPDIR": "/tmp" if work == "/work" else work,  # noqa: S108 - the sandbox's own
        "PYTHONHASHSEED": "0",  # the order of a set is the same in every sandbox, so a task can be repeated
    }


class Launcher:
    """One launcher process. Not restarted here: its death kills all sandboxes, and the backend decides."""

    def __init__(self, configuration: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        self._configuration = dict(configuration)
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._ready: asyncio.Future[None] | None = None

    @property
    def alive(self) -> bool:
        """Whether sandboxes can be made."""
        return self._connection is not None

    @property
    def pid(self) -> int | None:
        """Process id, for records and tests."""
        return self._process.pid if self._process else None

    async def start(self) -> None:
        """Start the process and wait until it is ready. Raises Unavailable with the kernel's reason.

        Must be called on the main thread: the launcher dies with the thread that started it.
        """
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        package = Path(next(iter(temper.sandbox.__path__))).parents[1]
        program = _STARTER.format(path=str(package), fd=theirs.fileno())
        with theirs:
            # Buffers of standard output start empty in the child, and its environment holds nothing of ours.
            self._process = subprocess.Popen(  # noqa: S603, ASYNC220 - our own program; nobody to delay yet
                [base_python().executable, "-S", "-s", "-P", "-B", "-X", "utf8", "-c", program],
                env=self._environment | {BIND_NOW: "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=None,
                pass_fds=(theirs.fileno(),),
                cwd="/",
                start_new_session=True,
            )
        self._connection = ours
        self._ready = loop.create_future()
        wire.send(ours, self._configuration)
        loop.add_reader(ours, self._on_readable)
        try:
            async with asyncio.timeout(_START_S):
                await self._ready
        except TimeoutError:
            self.close()
            raise Unavailable(f"the launcher was not ready within {_START_S:.0f} s") from None
        except TemperError:
            self.close()
            raise

    def create(self, request: Mapping[str, Any], cgroups: Sequence[int]) -> socket.socket:
        """Ask for a sandbox; returns the connection to its init, which says when it is ready. Raises Unavailable."""
        if self._connection is None:
            raise Unavailable("the launcher is gone", hint="the service restarts it")
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                wire.send(self._connection, dict(request), [theirs.fileno(), *cgroups])
            except OSError as error:
                ours.close()
                raise Unavailable("the launcher is gone", hint="the service restarts it") from error
        return ours

    def _on_readable(self) -> None:
        assert self._connection is not None
        try:
            received = wire.receive(self._connection)
        except (OSError, ValueError):
            received = None
        if received is None:
            self._lost("the launcher died")
            return
        message, _ = received
        if message["event"] == "failed":
            self._lost(message["error"])
        elif self._ready is not None and not self._ready.done():
            self._ready.set_result(None)

    def _lost(self, reason: str) -> None:
        self._disconnect()
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(Unavailable(reason))

    def _disconnect(self) -> None:
        if self._connection is not None:
            asyncio.get_running_loop().remove_reader(self._connection)
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        """End the process and all sandboxes below it; returns when they are gone."""
        self._disconnect()  # its end of file: it exits, and as process 1 of its namespace takes all below with it
        if self._process is not None:
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self._process.send_signal(signal.SIGKILL)
                self._process.wait()
            self._process = None
