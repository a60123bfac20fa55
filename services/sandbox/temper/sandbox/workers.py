"""The process that runs an environment's code, seen from the service: calls in, answers out, killed when it is late."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from temper.runtime.errors import Unavailable
from temper.sandbox.engine.discard import discard
from temper.sandbox.engine.guest import wire

_STOP_S: Final = 10.0
_DIED: Final = "the environment's worker died"
_PATIENCE: Final = "setup_s, task_s and verify_s of [limits] in its env.toml say how long it may take"
_HOMES: Final = "home-"


class VerifierError(Exception):
    """The environment's code failed or answered nonsense. Not a TemperError: it ends up as data in a reply."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the operator decides. Example: `Settings(Path("/var/lib/temper/sandbox/bundles"))`."""

    cache: Path
    """Directory of unpacked bundles."""
    max_workers: int = 8
    """Most worker processes; the one idle longest makes room."""
    memory_bytes: int = 4 << 30
    """Address space of a worker."""
    uid: int = 209_999
    """Who workers run as, where this service is root."""


class WorkerProcess:
    """One child. Calls are answered in order; a late one kills the child and fails all that wait."""

    def __init__(self, path: Path, entry: str, settings: Settings) -> None:
        self._loop = asyncio.get_running_loop()
        self._home = _home(path.parent, settings.uid)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            command = [sys.executable, "-P", "-m", "temper.sandbox.envworker"]
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                [
                    *command,
                    str(theirs.fileno()),
                    str(path / entry),
                    str(settings.memory_bytes),
                    str(settings.uid),
                ],
                env=_environment(self._home),
                cwd=path,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self._socket = ours
        self._decoder = wire.Decoder()
        self._waiting: dict[int, asyncio.Future[wire.Message]] = {}
        self._opened: dict[str, asyncio.Future[Any]] = {}
        self._next = 0
        self._turn = asyncio.Lock()
        self._end = _DIED
        self.alive = True
        """Whether calls can be made."""
        self._loop.add_reader(ours, self._on_readable)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def idle(self) -> bool:
        """Whether nobody waits for it."""
        return not self._waiting and not self._turn.locked()

    async def open(self, digest: str, params: dict[str, Any], timeout_s: float) -> None:
        """Load `Environment(params)` once. Raises VerifierError, Unavailable."""
        opening = self._opened.get(digest)
        if opening is None:
            request = {"op": "open", "digest": digest, "params": params}
            opening = asyncio.ensure_future(self.call(request, timeout_s))
            # Each waiter raises a failure itself; a future that nobody awaits any more must not complain about it.
            opening.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._opened[digest] = opening
        try:
            await asyncio.shield(opening)
        except (VerifierError, Unavailable):
            self._opened.pop(digest, None)
            raise

    async def call(self, request: dict[str, Any], timeout_s: float) -> Any:
        """Raises VerifierError with the environment's own message, Unavailable if it was late or died."""
        async with self._turn:  # one at a time, so that a deadline counts from when its own call begins
            if not self.alive:
                raise Unavailable(self._end, hint="the next call starts another")
            self._next += 1
            number = self._next
            future: asyncio.Future[wire.Message] = self._loop.create_future()
            self._waiting[number] = future
            try:
                async with asyncio.timeout(timeout_s):
                    await self._loop.sock_sendall(self._socket, wire.encode({**request, "id": number}))
                    reply = await future
            except TimeoutError:
                # Those that wait behind a call that hangs get to know why they fail, too.
                self.kill(f"the environment did not answer within {timeout_s:.1f} s")
                raise Unavailable(self._end, hint=_PATIENCE) from None
            except (
                asyncio.CancelledError
            ):  # its answer will still come; a child in an unknown state is not kept
                self.kill()
                raise
            except OSError:
                self.kill()
                raise Unavailable(self._end) from None
            finally:
                self._waiting.pop(number, None)
        if "error" in reply:
            raise VerifierError(str(reply["error"]))
        return reply.get("value")

    def _on_readable(self) -> None:
        try:
            data = self._socket.recv(1 << 18)
            messages = self._decoder.feed(data) if data else None
        except BlockingIOError:
            return
        except (OSError, ValueError):
            messages = None
        if messages is None:
            self.kill()
            return
        for message in messages:
            waiting = self._waiting.pop(message.get("id", -1), None)
            if waiting is not None and not waiting.done():
                waiting.set_result(message)

    def kill(self, why: str = _DIED) -> None:
        """End the child and fail every caller with `why`. Idempotent."""
        if not self.alive:
            return
        self.alive = False
        self._end = why
        self._loop.remove_reader(self._socket)
        self._socket.close()
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_S)
        discard(self._home)
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(Unavailable(why))


def _home(cache: Path, uid: int) -> Path:
    """A directory of the worker alone, the only one that it can write to besides what everybody can."""
    home = Path(tempfile.mkdtemp(prefix=_HOMES, dir=cache))
    if os.geteuid() == 0:
        os.chown(home, uid, uid)
    return home


def remove_homes(cache: Path) -> None:
    """What workers of a killed predecessor left; the service is the only one of its directory."""
    for home in cache.glob(f"{_HOMES}*"):
        discard(home)


def _environment(home: Path) -> dict[str, str]:
    """All that an environment's process sees of ours: where Python finds its packages."""
    kept = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "HOME": str(home),
        "TMPDIR": str(home),
        "PYTHONHASHSEED": "0",
    }
    kept |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    if "PYTHONPATH" in os.environ:
        kept["PYTHONPATH"] = os.environ["PYTHONPATH"]
    return kept
