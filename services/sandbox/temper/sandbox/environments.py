"""Environments on this host: bundles fetched once, one worker process per bundle, calls with deadlines.

A worker that is late is killed; the next call starts another. Its crash, its lateness and an answer outside its own
declared range are failures of the infrastructure: the caller gets `Unavailable` or `VerifierError`, never a score of 0.
"""

import asyncio
import contextlib
import importlib.util
import json
import math
import os
import socket
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from temper.api.common.v1 import common_pb2
from temper.runtime.errors import Rejected, TemperError, Unavailable
from temper.sandbox import bundle, manifest
from temper.sandbox.engine.guest import wire

Fetch = Callable[[common_pb2.BlobRef], Awaitable[bytes]]

_STOP_S: Final = 10.0
_DIED: Final = "the environment's worker died"


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


class EnvironmentHost:
    """Environments by digest. Knows workers and bundles, nothing of sandboxes."""

    def __init__(self, fetch: Fetch, settings: Settings) -> None:
        self._fetch = fetch
        self._settings = settings
        self._bundles: dict[str, asyncio.Task[tuple[Path, manifest.Manifest]]] = {}
        self._workers: OrderedDict[str, WorkerProcess] = OrderedDict()

    async def open(self, env: common_pb2.EnvRef) -> "Environment":
        """The environment, its manifest read; its code is not loaded yet. Raises Rejected, Unavailable."""
        digest = env.bundle.sha256
        task = self._bundles.get(digest)
        if task is None:
            task = asyncio.create_task(self._unpack(env.bundle))
            self._bundles[digest] = task
        try:
            path, declared = await asyncio.shield(task)
        except TemperError:
            self._bundles.pop(digest, None)
            raise
        return Environment(self, env.digest, _params(env.params_json), path, declared)

    async def _unpack(self, ref: common_pb2.BlobRef) -> tuple[Path, manifest.Manifest]:
        target = self._settings.cache / ref.sha256
        if not target.is_dir():
            content = await self._fetch(ref)  # checks size and hash
            target = await asyncio.to_thread(bundle.unpack, content, ref.sha256, self._settings.cache)
        declared = manifest.read(target / "env.toml")
        _require(declared.requires)
        return target, declared

    def worker(self, path: Path, entry: str) -> "WorkerProcess":
        """The live worker of a bundle, started if there is none."""
        key = path.name
        worker = self._workers.pop(key, None)
        if worker is None or not worker.alive:
            self._make_room()
            worker = WorkerProcess(path, entry, self._settings.memory_bytes)
        self._workers[key] = worker
        return worker

    def _make_room(self) -> None:
        for key, worker in list(self._workers.items()):
            if len(self._workers) < self._settings.max_workers:
                return
            if worker.idle or not worker.alive:
                del self._workers[key]
                worker.kill()

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers, for tests and the doctor."""
        return [worker.pid for worker in self._workers.values()]

    async def close(self) -> None:
        """End every worker."""
        for worker in self._workers.values():
            worker.kill()
        self._workers.clear()


class Environment:
    """One variant of an environment: calls into its worker, checked on the way back."""

    def __init__(
        self,
        host: EnvironmentHost,
        digest: str,
        params: dict[str, Any],
        path: Path,
        declared: manifest.Manifest,
    ) -> None:
        self._host = host
        self._digest = digest
        self._params = params
        self._path = path
        self.manifest = declared
        """What it declares."""

    async def tasks(self, split: str, indices: Sequence[int], styles: Sequence[str]) -> list[dict[str, Any]]:
        """`{"prompt", "tags", "oracle"}` of each. Raises Rejected if its code fails, Unavailable if it hangs or dies."""
        request = {"op": "tasks", "split": split, "indices": list(indices), "styles": list(styles)}
        try:
            views = await self._call(request, self.manifest.task_s * (1 + len(indices) / 16))
        except VerifierError as error:
            raise Rejected(f"the environment cannot make this task: {error}", field="env") from error
        if not isinstance(views, list) or not all(_is_view(view) for view in cast("list[Any]", views)):
            raise Rejected("the environment made a task without a prompt", field="env")
        return cast("list[dict[str, Any]]", views)

    async def score(self, split: str, index: int, answer: str, transcript: list[dict[str, Any]]) -> float:
        """A finite reward in the declared range. Raises VerifierError, Unavailable."""
        request = {"op": "score", "split": split, "index": index, "answer": answer, "transcript": transcript}
        reward = await self._call(request, self.manifest.verify_s)
        low, high = self.manifest.reward_min, self.manifest.reward_max
        if not isinstance(reward, float) or not math.isfinite(reward):
            raise VerifierError(f"the reward is {reward!r}, not a finite number")
        if not low <= reward <= high:
            raise VerifierError(f"the reward {reward} is outside the declared range [{low}, {high}]")
        return reward

    async def _call(self, request: dict[str, Any], timeout_s: float) -> Any:
        worker = self._host.worker(self._path, self.manifest.entry)
        await worker.open(self._digest, self._params, self.manifest.setup_s)
        return await worker.call({**request, "digest": self._digest}, timeout_s)


class WorkerProcess:
    """One child. Calls are answered in order; a late one kills the child and fails all that wait."""

    def __init__(self, path: Path, entry: str, memory_bytes: int) -> None:
        self._loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            command = [sys.executable, "-P", "-m", "temper.sandbox.envworker"]
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                [*command, str(theirs.fileno()), str(path / entry), str(memory_bytes)],
                env=_environment(path),
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
                raise Unavailable(self._end) from None
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
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(Unavailable(why))


def _require(packages: Sequence[str]) -> None:
    """Rejected if one cannot be imported here; its top level is looked up, nothing is imported."""
    missing = [name for name in packages if importlib.util.find_spec(name.partition(".")[0]) is None]
    if missing:
        raise Rejected(
            f"this sandbox host lacks {', '.join(missing)}",
            field="env.toml: runtime.requires",
            hint="install it where the sandbox service runs, then `temper env check NAME --force`",
        )


def _environment(path: Path) -> dict[str, str]:
    """All that an environment's process sees of ours: where Python finds its packages."""
    kept = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "HOME": str(path),
        "PYTHONHASHSEED": "0",
    }
    kept |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    if "PYTHONPATH" in os.environ:
        kept["PYTHONPATH"] = os.environ["PYTHONPATH"]
    return kept


def _params(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text) if text else {}
    except ValueError as error:
        raise Rejected(f"not JSON: {error}", field="env.params_json") from None
    if not isinstance(value, dict):
        raise Rejected("must be an object", field="env.params_json")
    return cast("dict[str, Any]", value)


def _is_view(view: Any) -> bool:
    return isinstance(view, dict) and isinstance(cast("dict[str, Any]", view).get("prompt"), str)
