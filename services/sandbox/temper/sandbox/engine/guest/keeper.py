# ruff: noqa: PTH123 - pathlib would be loaded into every container for nothing
"""The keeper of one session in a container: requests on standard input, events on standard output.

It does what a keeper below a sandbox's own init does (`guest.init`), and holds the far ends of the session's pipes and terminal too,
since no descriptor crosses the walls of every container. It adopts the orphans of its tree, so the session can be ended whole; where the
kernel has no adoption (gVisor's), it knows them by a group that this program alone was started with and that nobody can leave.

Output goes out as far as the host has given credit for it; only what lies in the pipes when a script or the program ends goes at once.
"""

import base64
import contextlib
import fcntl
import os
import select
import signal
import struct
import termios
from typing import Any, Final

from temper.sandbox.engine.guest import keys, processes, starting, syscalls, wire

MARKS: Final = 1 << 30
"""Groups from here on mark what one start of a container has started."""
CREDIT: Final = 256 << 10
"""Bytes of a stream that may be on their way before the host says that it has taken them."""
_CHUNK: Final = 32 << 10
_DRAIN_CHUNKS: Final = 64  # a pipe holds at most 1 MiB; more than that on draining is a background writer


def main() -> None:
    """Keep one session until the host hangs up."""
    mark = next((group for group in os.getgroups() if group >= MARKS), 0)
    if not mark:
        syscalls.become_subreaper()
    syscalls.set_dumpable(dumpable=False)
    if os.getpid() != os.getpgid(0):
        os.setsid()
    keeper = _Keeper(mark)
    with contextlib.suppress(OSError, ValueError):  # the host is gone or speaks nonsense: no one to serve
        keeper.run()
    keeper.kill_everything()
    os._exit(0)


class _Keeper:
    """The loop. `_flows` maps a descriptor of ours to the name of its stream."""

    def __init__(self, mark: int) -> None:
        self._mark = mark
        self._pid = 0
        self._orders = -1
        self._flows: dict[int, str] = {}
        self._credit = {"stdout": CREDIT, "stderr": CREDIT}
        self._inputs: dict[str, int] = {}
        self._pending: dict[str, bytes] = {}
        self._statuses = -1
        self._status = b""
        self._decoder = wire.Decoder()
        self._wake, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler the descriptor would not wake
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self._calls = {
            "begin": self._begin,
            "input": self._take_input,
            "took": self._give_credit,
            "resize": self._resize,
            "signal": self._signal,
            "kill": self._kill,
        }

    def run(self) -> None:
        """Serve until the host hangs up."""
        while True:
            wanted = [each for each, name in self._flows.items() if self._credit[name] > 0]
            wanted += [0, self._wake, *([self._statuses] if self._statuses >= 0 else [])]
            typing = [self._inputs[name] for name, data in self._pending.items() if data]
            readable, writable, _ = select.select(wanted, typing, [])
            for descriptor in readable:
                if descriptor in self._flows:
                    self._pass_on(descriptor)
            for name in [name for name, target in self._inputs.items() if target in writable]:
                self._type(name)
            if self._statuses in readable:
                self._read_status()
            if self._wake in readable:
                os.read(self._wake, 4096)
                self._reap(os.WNOHANG)
            if 0 in readable and not self._serve():
                return

    def _serve(self) -> bool:
        data = os.read(0, 1 << 16)
        for request in self._decoder.feed(data):
            self._calls[request["op"]](request)
        return bool(data)

    def _begin(self, request: wire.Message) -> None:
        terminal = request["terminal"]
        theirs = self._terminal(request) if terminal else self._pipes(request)
        known = {name: value for name, value in os.environ.items() if name not in {"PWD", "OLDPWD", "_"}}
        argv, pid, reason = request["argv"], 0, "no program is named"
        if argv:
            start = starting.Start(argv, known | request["env"], request["cwd"])
            if terminal and self._mark and not keys.kernel_sends():
                pid, reason = self._begin_led(start, theirs[0])
            else:
                pid, reason = self._begin_alone(start, theirs, terminal=terminal)
        for descriptor in set(theirs):
            os.close(descriptor)
        if reason:
            _say({"event": "refused", "error": reason})
        else:
            ours = [os.getpid(), *([self._pid] if self._pid != pid else [])]
            _say({"event": "started", "pid": pid, "ours": ours})

    def _begin_alone(self, start: starting.Start, theirs: list[int], *, terminal: bool) -> tuple[int, str]:
        self._pid, told = starting.spawn(lambda _: starting.become_alone(start, theirs, terminal=terminal))
        return self._pid, told.decode(errors="replace")

    def _begin_led(self, start: starting.Start, terminal: int) -> tuple[int, str]:
        orders, self._orders = os.pipe()
        self._pid, told = starting.spawn(
            lambda telling: starting.become_led(start, terminal, orders, telling)
        )
        os.close(orders)
        return keys.heard(told)

    def _terminal(self, request: wire.Message) -> list[int]:
        ours, theirs = os.openpty()
        self._inputs["input"] = ours
        self._listen(ours, "stdout")
        self._resize(request)
        return [theirs, theirs, theirs]

    def _pipes(self, request: wire.Message) -> list[int]:
        if request["stdin"]:
            stdin, self._inputs["input"] = os.pipe()
            os.set_blocking(self._inputs["input"], False)
        else:
            stdin = os.open(os.devnull, os.O_RDONLY)
        theirs = [stdin]
        for name in ("stdout", "stderr"):
            ours, their = os.pipe()
            self._listen(ours, name)
            theirs.append(their)
        if request["shell"]:
            scripts, self._inputs["script"] = os.pipe()
            os.set_blocking(self._inputs["script"], False)
            self._statuses, statuses = os.pipe()
            os.set_blocking(self._statuses, False)
            theirs += [scripts, statuses]
        return theirs

    def _listen(self, descriptor: int, name: str) -> None:
        os.set_blocking(descriptor, False)
        self._flows[descriptor] = name

    def _pass_on(self, descriptor: int) -> bool:
        """One chunk of output to the host; False if there was none."""
        name = self._flows[descriptor]
        try:
            data = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return False
        except OSError:  # how a terminal says that nobody has it open any more
            data = b""
        if not data:
            del self._flows[descriptor]
            return False
        self._credit[name] -= len(data)
        _say({"event": "output", "stream": name, "data": base64.b64encode(data).decode()})
        return True

    def _drain(self) -> None:
        """What already lies in the pipes, credit or not."""
        for descriptor in list(self._flows):
            for _ in range(_DRAIN_CHUNKS):
                if not self._pass_on(descriptor):
                    break

    def _read_status(self) -> None:
        try:
            data = os.read(self._statuses, 4096)
        except BlockingIOError:
            return
        self._status += data
        if not data or len(self._status) > _CHUNK:
            os.close(self._statuses)
            self._statuses = -1
            return
        *lines, self._status = self._status.split(b"\n")
        if lines and lines[-1].isdigit():
            self._drain()
            _say({"event": "status", "status": int(lines[-1][:9])})

    def _take_input(self, request: wire.Message) -> None:
        name = request["to"]
        if name in self._inputs:
            self._pending[name] = self._pending.get(name, b"") + base64.b64decode(request["data"])

    def _type(self, name: str) -> None:
        data, target = self._pending[name], self._inputs[name]
        first = keys.split(target, data)[0] if self._orders >= 0 else data
        try:
            written = (
                os.write(self._orders, bytes([first])) if isinstance(first, int) else os.write(target, first)
            )
        except BlockingIOError:
            return
        except OSError:  # nobody reads there any more
            written = len(data)
        self._pending[name] = self._pending[name][written:]
        _say({"event": "typed", "to": name, "bytes": written})

    def _give_credit(self, request: wire.Message) -> None:
        self._credit[request["stream"]] += request["bytes"]

    def _resize(self, request: wire.Message) -> None:
        size = struct.pack("HHHH", request["rows"], request["columns"], 0, 0)
        fcntl.ioctl(self._inputs["input"], termios.TIOCSWINSZ, size)

    def _signal(self, request: wire.Message) -> None:
        leader = {self._pid} if self._orders >= 0 else set[int]()
        processes.send(self._tree() - leader, request["signal"])

    def _tree(self) -> set[int]:
        rows = processes.table()
        below = processes.below({os.getpid()}, rows)
        return below | {pid for pid in rows if self._mark and pid != os.getpid() and _has(pid, self._mark)}

    def _kill(self, _: wire.Message) -> None:
        self.kill_everything()
        _say({"event": "killed"})

    def kill_everything(self) -> None:
        """All below this process, until the last one is gone. Stopped first, so that none can fork away from the list."""
        while (victims := self._tree()) or not processes.childless():
            processes.send(victims, signal.SIGSTOP)
            processes.send(victims, signal.SIGKILL)
            self._reap(os.WNOHANG)
        self._reap(os.WNOHANG)

    def _reap(self, options: int) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, options)
                if pid == 0:
                    return
                if pid == self._pid:
                    self._pid = 0
                    with contextlib.suppress(OSError):
                        self._drain()
                        _say({"event": "exited", "status": status})


def _has(pid: int, mark: int) -> bool:
    """Whether a process is in a group. Source: proc_pid_status(5)."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status", "rb") as file:
        return any(line.startswith(b"Groups:") and str(mark).encode() in line.split() for line in file)
    return False


def _say(message: dict[str, Any]) -> None:
    frame = wire.encode(message)
    while frame:
        frame = frame[os.write(1, frame) :]
