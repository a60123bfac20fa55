"""The process that runs an environment's own code: tasks, oracle, score. Never in the service, never with a policy.

It is a killable child of the service with an environment of its own (no secrets), rlimits, no capabilities, no network
and no new privileges. It reads requests and writes replies (`engine.guest.wire`) on one socket and imports nothing of the
service. Environments of one bundle that differ only in parameters share a process, so a heavy import is paid once.

    {"op": "open", "digest", "params"}                              load `Environment(params)` under this digest
    {"op": "tasks", "digest", "split", "indices", "styles"}         prompts, tags, oracle actions
    {"op": "score", "digest", "split", "index", "answer", "transcript"}
    {"op": "verification", "digest", "split", "index", "answer"}    how a final state is judged
    {"op": "score", …, "run"}                                       with what the host saw of the verifier: `judge`
"""

import importlib.util
import os
import resource
import signal
import socket
import stat
import sys
import traceback
from collections import OrderedDict
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NoReturn

from temper.sandbox.engine.guest import seccomp, syscalls, wire

_KEPT_TASKS: Final = 4096
_KEPT_FRAMES: Final = 3
_ERROR_TEXT: Final = 1000

Task = dict[str, Any]


class Worker:
    """The environments of one bundle and the tasks made last."""

    def __init__(self, entry: Path) -> None:
        self._entry = entry
        self._module: ModuleType | None = None
        self._environments: dict[str, Any] = {}
        self._tasks: OrderedDict[tuple[str, str, int], Task] = OrderedDict()

    def answer(self, request: wire.Message) -> Any:
        """Serve one request; whatever the environment raises goes up."""
        match request["op"]:
            case "open":
                return self._open(request["digest"], request["params"])
            case "tasks":
                return self._view_tasks(request)
            case "verification":
                environment = self._environments[request["digest"]]
                return environment.verification(self._asked(request), request["answer"])
            case _:
                return self._score(request)

    def _open(self, digest: str, params: dict[str, Any]) -> None:
        if digest not in self._environments:
            if self._module is None:
                self._module = _load(self._entry)
            self._environments[digest] = self._module.Environment(params)

    def _task(self, digest: str, split: str, index: int) -> Task:
        """Made again when it fell out of the cache: the same (split, index) gives the same task."""
        key = (digest, split, index)
        if key in self._tasks:
            self._tasks.move_to_end(key)
            return self._tasks[key]
        task: Task = self._environments[digest].task(split, index)
        self._tasks[key] = task
        if len(self._tasks) > _KEPT_TASKS:
            self._tasks.popitem(last=False)
        return task

    def _asked(self, request: wire.Message) -> Task:
        return self._task(request["digest"], request["split"], request["index"])

    def _view_tasks(self, request: wire.Message) -> list[dict[str, Any]]:
        """Prompts and tags; never a task's private part, but for what its oracle does when asked."""
        styles = request["styles"] or [""] * len(request["indices"])
        views: list[dict[str, Any]] = []
        for index, style in zip(request["indices"], styles, strict=True):
            task = self._task(request["digest"], request["split"], index)
            oracle = self._environments[request["digest"]].oracle(task, style) if style else []
            tags = {str(key): str(value) for key, value in task.get("tags", {}).items()}
            views.append({"prompt": task["prompt"], "tags": tags, "oracle": oracle or []})
        return views

    def _score(self, request: wire.Message) -> Any:
        task, answer, transcript = self._asked(request), request["answer"], request["transcript"]
        environment = self._environments[request["digest"]]
        if "run" in request:
            reward = environment.judge(task, answer, transcript, request["run"])
        else:
            reward = environment.score(task, answer, transcript)
        if isinstance(reward, dict):  # one part of the reward for each name that the manifest weighs
            return {str(name): float(value) for name, value in reward.items()}
        return float(reward) if isinstance(reward, int | float) else reward


def _load(entry: Path) -> ModuleType:
    specification = importlib.util.spec_from_file_location("temper_environment", entry)
    if specification is None or specification.loader is None:
        raise ImportError(f"{entry.name} cannot be loaded")
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module  # dataclasses and pickling look a class's module up here
    specification.loader.exec_module(module)
    return module


def main(descriptor: int, entry: str, memory_bytes: int, uid: int) -> NoReturn:
    """Close the doors, then serve until the service hangs up."""
    syscalls.die_with_parent(signal.SIGKILL)
    connection = socket.socket(fileno=descriptor)
    _confine(memory_bytes, uid, entry)
    worker = Worker(Path(entry))
    while (received := wire.receive(connection)) is not None:
        request, _ = received
        wire.send(connection, {"id": request["id"], **_reply(worker, request)})
    os._exit(0)


def _reply(worker: Worker, request: wire.Message) -> dict[str, Any]:
    try:
        reply = {"value": worker.answer(request)}
        wire.encode(reply)  # what cannot be written as JSON is the environment's mistake too
    except BaseException as error:  # noqa: BLE001 - an environment may raise anything, sys.exit included
        return {"error": _describe(error)}
    return reply


def _describe(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)[-_KEPT_FRAMES:]
    where = " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames))
    return f"{type(error).__name__}: {error} [{where}]"[:_ERROR_TEXT]


def _confine(memory_bytes: int, uid: int, entry: str) -> None:
    """As root: another user than the service, who can neither write its files nor signal its processes.

    Python and the bundle may lie where only root can read; then, and only then, reading is left to it.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    if syscalls.supported():
        if os.geteuid() == 0:
            syscalls.unshare(syscalls.CLONE_NEWNET)
            syscalls.drop_bounding_set()
            syscalls.become_reader(uid)
            if _readable(uid, [entry, *sys.path]):
                syscalls.drop_capabilities()
        else:
            syscalls.drop_capabilities()
        syscalls.no_new_privileges()
        syscalls.Filter(seccomp.program()).install()


def _readable(uid: int, paths: list[str]) -> bool:
    """Whether everybody may read these, judged by the modes on the way: this process itself may read anything."""
    places = {each for path in paths for each in (Path(path), *Path(path).parents)}
    return all(_open_to_all(each, uid) for each in places if each.exists())


def _open_to_all(place: Path, uid: int) -> bool:
    found = place.stat()
    wanted = stat.S_IROTH | stat.S_IXOTH if stat.S_ISDIR(found.st_mode) else stat.S_IROTH
    return found.st_uid == uid or found.st_mode & wanted == wanted


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
