# ruff: noqa: PTH123, PTH208 - pathlib would lie in every sandbox's memory for nothing
"""Process 1 of a sandbox: closes the doors behind itself, then runs what the host asks for and reaps orphans.

Once inside it is as unprivileged as the commands, but they cannot signal it (process 1), trace it or read it (not
dumpable, and the filter refuses ptrace).
"""

import contextlib
import os
import resource
import select
import signal
import socket
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from temper.sandbox.engine.guest import interpreter, syscalls, wire
from temper.sandbox.engine.guest.enter import CONTROL, OOM_SCORE, Seal, enter

_VICTIM: Final = b"500"  # commands die before init when memory runs out
_ANY: Final = -1


def main(control: socket.socket, request: wire.Message, cgroups: Sequence[int], seal: Seal) -> NoReturn:
    """Become a sandbox. Never returns."""
    try:
        connection = enter(control, request, cgroups, seal)
        handles = [os.pidfd_open(os.getpid())]
        handles += [os.open(path, os.O_PATH | os.O_DIRECTORY) for path in request["shared"]]
    except OSError as error:
        with contextlib.suppress(OSError):
            wire.send(control, {"event": "failed", "error": str(error)})
        os._exit(1)
    init = _Init(connection, request)
    try:
        wire.send(connection, {"event": "ready"}, handles)
        for descriptor in handles:
            os.close(descriptor)
        init.run()
    except (OSError, ValueError):  # the host is gone or speaks nonsense; either way there is no one to serve
        pass
    if not request["isolated"]:  # no namespace ends with this process
        init.kill_everything()
    os._exit(0)


class _Init:
    """The loop of process 1. `_running` maps a child's pid to the id its command came with."""

    def __init__(self, connection: socket.socket, request: wire.Message) -> None:
        self._connection = connection
        self._search_path: list[str] = request["search_path"]
        self._isolated: bool = request["isolated"]
        self._environment: dict[str, str] = request["environment"]
        self._running: dict[int, int] = {}
        self._cpu = 0.0
        self._wake, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # A handler must exist for the wake-up descriptor to be used.
        syscalls.handle_signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def run(self) -> None:
        """Serve until the host hangs up."""
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self._wake in ready:
                os.read(
                    self._wake, 4096
                )  # what may be left makes the next poll return at once, and that is all
            self._reap(os.WNOHANG)
            if self._connection.fileno() in ready:
                received = wire.receive(self._connection)
                if received is None:
                    return
                self._serve(*received)

    def _serve(self, request: wire.Message, descriptors: list[int]) -> None:
        try:
            match request["op"]:
                case "spawn":
                    self._spawn(request, descriptors)
                case "interpreter":
                    self._fork_interpreter(request["id"], descriptors)
                case "signal":
                    self._signal(request["id"], request["signal"])
                case _:
                    self.kill_everything()
                    wire.send(self._connection, {"event": "killed"})
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _spawn(self, request: wire.Message, descriptors: list[int]) -> None:
        argv: list[str] = request["argv"]
        actions = [(os.POSIX_SPAWN_DUP2, source, target) for target, source in enumerate(descriptors)]
        try:
            os.chdir(request["cwd"])
            os.pwrite(OOM_SCORE, _VICTIM, 0)  # inherited by the child, then taken back
            pid = os.posix_spawnp(
                argv[0],
                argv,
                self._environment | request["env"],
                file_actions=actions,
                setsid=True,
                setsigdef=(signal.SIGPIPE, signal.SIGCHLD, signal.SIGXFSZ),
            )
        except (OSError, ValueError) as error:
            text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            wire.send(self._connection, {"event": "refused", "id": request["id"], "error": text})
        else:
            self._running[pid] = request["id"]
        finally:
            os.pwrite(OOM_SCORE, b"0", 0)

    def _fork_interpreter(self, number: int, descriptors: list[int]) -> None:
        pid = os.fork()
        if pid:
            self._running[pid] = number
            return
        channel, output = descriptors
        signal.set_wakeup_fd(-1)
        syscalls.handle_signal(signal.SIGCHLD, syscalls.DEFAULT_ACTION)
        syscalls.handle_signal(signal.SIGINT, signal.default_int_handler)
        os.setsid()
        os.pwrite(OOM_SCORE, _VICTIM, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.dup2(channel, CONTROL, inheritable=False)
        syscalls.close_from(CONTROL + 1)
        if self._isolated:
            syscalls.set_dumpable(dumpable=True)
        for name, value in self._environment.items():
            if os.environ.get(name) != value:
                os.environ[name] = value
        self._connection.detach()
        _serve_interpreter(self._search_path)

    def _signal(self, number: int, which: int) -> None:
        for pid, known in self._running.items():
            if known == number:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, which)

    def kill_everything(self) -> None:
        """All but this process, in one call of the kernel, then wait until the last one is gone."""
        if self._isolated:
            with contextlib.suppress(ProcessLookupError):
                os.kill(_ANY, signal.SIGKILL)
            self._reap(0)
            return
        while victims := _descendants(os.getpid()):
            for which in (signal.SIGSTOP, signal.SIGKILL):
                for pid in victims:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, which)
            self._reap(os.WNOHANG)

    def _reap(self, options: int) -> None:
        """Collect what has ended; with no options, block until no child is left."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status, usage = os.wait4(_ANY, options)
                if pid == 0:
                    return
                self._cpu += usage.ru_utime + usage.ru_stime
                number = self._running.pop(pid, None)
                if number is not None:
                    event = {"event": "exited", "id": number, "status": status}
                    with contextlib.suppress(OSError):  # the host is gone: the loop will see it too
                        wire.send(self._connection, event | _usage(usage, self._cpu))


def _usage(usage: resource.struct_rusage, total_cpu: float) -> dict[str, Any]:
    return {
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "total_cpu_s": total_cpu,
        "peak_bytes": usage.ru_maxrss * 1024,
    }


def _serve_interpreter(search_path: list[str]) -> NoReturn:
    status = 1
    try:
        interpreter.serve(socket.socket(fileno=CONTROL), search_path)
        status = 0
    finally:
        os._exit(status)


def _descendants(ancestor: int) -> list[int]:
    """Pids below `ancestor`, zombies excluded, from /proc (only without a pid namespace)."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
                if state != b"Z":
                    parents[int(name)] = int(parent)
    found = {ancestor}
    while grown := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= grown
    return sorted(found - {ancestor})
