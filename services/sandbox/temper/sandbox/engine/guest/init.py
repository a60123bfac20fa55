"""Process 1 of a sandbox: closes the doors behind itself, then runs what the host asks for and reaps orphans.

Once inside it is as unprivileged as the commands, but they cannot signal it (process 1), trace it or read it (not
dumpable, and the filter refuses ptrace).

Each session has a keeper, a second loop of this kind below the first. It adopts the orphans of its own tree (subreaper), so
a session can be ended whole without touching the others, however its processes have detached themselves.
"""

import contextlib
import os
import resource
import select
import signal
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

from temper.sandbox.engine.guest import interpreter, processes, syscalls, wire
from temper.sandbox.engine.guest.enter import CONTROL, OOM_SCORE, Seal, enter

_VICTIM: Final = b"500"  # commands die before init when memory runs out
_SPARED: Final = b"0"
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
    _live(_Init(connection, request, alone=request["isolated"], first=True), handles)


def _live(init: "_Init", handles: list[int]) -> NoReturn:
    try:
        init.say({"event": "ready"}, handles)
        for descriptor in handles:
            os.close(descriptor)
        init.run()
    except (OSError, ValueError):  # the host is gone or speaks nonsense; either way there is no one to serve
        pass
    init.leave()
    os._exit(0)


class _Init:
    """The loop of process 1, or of a session's keeper.

    `_running` maps a child's pid to the id its command came with, `_keepers` a keeper's pid to its session. `alone`: this
    is process 1 of a pid namespace; `first`: it is no keeper.
    """

    def __init__(self, connection: socket.socket, request: wire.Message, *, alone: bool, first: bool) -> None:
        self._connection = connection
        self._request = request
        self._alone = alone
        self._first = first
        self._environment: dict[str, str] = request["environment"]
        self._running: dict[int, int] = {}
        self._keepers: dict[int, str] = {}
        self._cpu = 0.0
        self._stopped: set[int] = set()
        self._wake, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # A handler must exist for the wake-up descriptor to be used.
        syscalls.handle_signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self._calls: dict[str, Callable[[wire.Message, list[int]], None]] = {
            "spawn": self._spawn,
            "interpreter": self._fork_interpreter,
            "keeper": self._fork_keeper,
            "signal": self._signal,
            "signal_tree": self._signal_tree,
            "signal_one": self._signal_one,
            "list": self._list,
            "freeze": self._freeze,
            "thaw": self._thaw,
            "kill": self._kill,
        }

    def say(self, message: wire.Message, descriptors: Sequence[int] = ()) -> None:
        """Tell the host."""
        wire.send(self._connection, message, descriptors)

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

    def leave(self) -> None:
        """End what no namespace ends with this process."""
        if not self._alone:
            self.kill_everything()

    def _serve(self, request: wire.Message, descriptors: list[int]) -> None:
        try:
            self._calls[request["op"]](request, descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _score(self, text: bytes) -> None:
        """What is forked here dies before this process when memory runs out; a keeper is a victim itself already."""
        if self._first:
            os.pwrite(OOM_SCORE, text, 0)  # inherited by the child, then taken back

    def _spawn(self, request: wire.Message, descriptors: list[int]) -> None:
        argv: list[str] = request["argv"]
        actions: list[Any] = [
            (os.POSIX_SPAWN_DUP2, source, target) for target, source in enumerate(descriptors)
        ]
        if request.get("terminal"):  # a leader without a terminal gets the first one that it opens
            actions.append((os.POSIX_SPAWN_OPEN, 0, "/proc/self/fd/1", os.O_RDWR, 0))
        try:
            os.chdir(request["cwd"] or self._request["directory"])
            self._score(_VICTIM)
            pid = os.posix_spawnp(
                argv[0],
                argv,
                self._environment | request["env"],
                file_actions=actions,
                setsid=True,
                setsigdef=(signal.SIGPIPE, signal.SIGCHLD, signal.SIGXFSZ),
            )
        except IndexError:
            self.say({"event": "refused", "id": request["id"], "error": "no program is named"})
        except (OSError, ValueError) as error:
            text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            self.say({"event": "refused", "id": request["id"], "error": text})
        else:
            self._running[pid] = request["id"]
            if not self._first:
                self.say({"event": "started", "pid": pid})
        finally:
            self._score(_SPARED)

    def _fork_interpreter(self, request: wire.Message, descriptors: list[int]) -> None:
        self._score(_VICTIM)
        try:
            pid = os.fork()
            if pid == 0:
                self._become_interpreter(*descriptors)
        finally:
            self._score(_SPARED)
        self._running[pid] = request["id"]

    def _become_interpreter(self, channel: int, output: int) -> NoReturn:
        signal.set_wakeup_fd(-1)
        syscalls.handle_signal(signal.SIGCHLD, syscalls.DEFAULT_ACTION)
        syscalls.handle_signal(signal.SIGINT, signal.default_int_handler)
        os.setsid()
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.dup2(channel, CONTROL, inheritable=False)
        syscalls.close_from(CONTROL + 1)
        if self._alone:
            syscalls.set_dumpable(dumpable=True)
        if not self._request["environment_stands"]:
            for name, value in self._environment.items():
                os.environ[name] = value
        self._connection.detach()
        _serve_interpreter(self._request["search_path"])

    def _fork_keeper(self, request: wire.Message, descriptors: list[int]) -> None:
        self._score(_VICTIM)
        try:
            pid = os.fork()
            if pid == 0:
                self._become_keeper(descriptors[0])
        finally:
            self._score(_SPARED)
        self._keepers[pid] = request["session"]

    def _become_keeper(self, channel: int) -> NoReturn:
        self._connection.detach()
        os.dup2(channel, CONTROL, inheritable=False)
        syscalls.close_from(CONTROL + 1)
        os.setsid()
        syscalls.become_subreaper()
        keeper = _Init(wire.line(CONTROL), self._request, alone=False, first=False)
        _live(keeper, [os.pidfd_open(os.getpid())])

    def _signal(self, request: wire.Message, _: list[int]) -> None:
        """The process group of one command."""
        for pid, known in self._running.items():
            if known == request["id"]:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, request["signal"])

    def _signal_tree(self, request: wire.Message, _: list[int]) -> None:
        """Everything below this process."""
        processes.send(processes.below({os.getpid()}, processes.table()), request["signal"])

    def _signal_one(self, request: wire.Message, _: list[int]) -> None:
        """One process by number, if it is the agent's."""
        pid = request["pid"]
        known = pid in self._agents(processes.table())
        if known:
            processes.send({pid}, request["signal"])
        self.say({"event": "signalled", "id": request["id"], "known": known})

    def _agents(self, rows: dict[int, list[bytes]]) -> set[int]:
        """Pids of the agent's processes: all but init and the keepers."""
        mine = set(rows) if self._alone else processes.below({os.getpid()}, rows)
        return mine - {os.getpid(), *self._keepers}

    def _list(self, request: wire.Message, _: list[int]) -> None:
        rows = processes.table()
        sessions = {
            pid: name for keeper, name in self._keepers.items() for pid in processes.below({keeper}, rows)
        }
        found = [
            processes.describe(pid, rows[pid]) | {"session": sessions.get(pid, "")}
            for pid in sorted(self._agents(rows))
        ]
        self.say({"event": "processes", "id": request["id"], "processes": found})

    def _freeze(self, request: wire.Message, _: list[int]) -> None:
        """Hold the agent's processes still; those that stood still before are left out, to stay so."""
        self._stopped = processes.freeze(self._agents)
        self.say({"event": "frozen", "id": request["id"]})

    def _thaw(self, request: wire.Message, _: list[int]) -> None:
        processes.send(self._stopped, signal.SIGCONT)
        self._stopped = set()
        self.say({"event": "thawed", "id": request["id"]})

    def _kill(self, request: wire.Message, _: list[int]) -> None:
        if request.get("spare") and self._keepers:
            self._kill_outside_sessions()
        else:
            self.kill_everything()
        self.say({"event": "killed"})

    def kill_everything(self) -> None:
        """All but this process, then wait until the last one is gone."""
        if self._alone:  # one call of the kernel, which no fork can race
            with contextlib.suppress(ProcessLookupError):
                os.kill(_ANY, signal.SIGKILL)
            self._reap(0)
            return
        # A look at the table takes time, and may see neither a parent that ends nor the child it has just made. This process
        # is their subreaper: while anything is left below it, it has a child.
        while not processes.childless():
            self._end(processes.below({os.getpid()}, processes.table()))

    def _kill_outside_sessions(self) -> None:
        nobody = 0
        while nobody < 2:  # one look may miss a child whose parent ended meanwhile; the next one sees it
            rows = processes.table()
            victims = self._agents(rows) - processes.below(self._keepers, rows)
            nobody = 0 if victims else nobody + 1
            self._end(victims)

    def _end(self, victims: set[int]) -> None:
        """Stopped first, so that none can fork away from the list."""
        processes.send(victims, signal.SIGSTOP)
        processes.send(victims, signal.SIGKILL)
        self._reap(os.WNOHANG)

    def _reap(self, options: int) -> None:
        """Collect what has ended; with no options, block until no child is left."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status, usage = os.wait4(_ANY, options)
                if pid == 0:
                    return
                self._cpu += usage.ru_utime + usage.ru_stime
                self._keepers.pop(pid, None)
                number = self._running.pop(pid, None)
                if number is not None:
                    event = {"event": "exited", "id": number, "status": status}
                    with contextlib.suppress(OSError):  # the host is gone: the loop will see it too
                        self.say(event | _usage(usage, self._cpu))


def _usage(usage: resource.struct_rusage, total_cpu: float) -> dict[str, Any]:
    return {
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "total_cpu_s": total_cpu,
        "peak_bytes": usage.ru_maxrss * 1024,
    }


def _serve_interpreter(search_path: list[str]) -> NoReturn:
    status = 1
    try:
        interpreter.serve(wire.line(CONTROL), search_path)
        status = 0
    finally:
        os._exit(status)
