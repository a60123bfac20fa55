"""Signals by keys for a terminal whose kernel sends none (gVisor's, up to 2022 at least).

lead    a process between the keeper and the program: leads the terminal's session, so it alone may ask who is in front
keys    what the keeper takes out of what is typed, as the terminal is set at that moment
"""

import contextlib
import fcntl
import os
import select
import signal
import struct
import termios
from collections.abc import Callable
from typing import Final, NoReturn

_SIGNALS: Final = (
    (termios.VINTR, signal.SIGINT),
    (termios.VQUIT, signal.SIGQUIT),
    (termios.VSUSP, signal.SIGTSTP),
)
_IGNORED: Final = (
    *(signal.SIGTTOU, signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGHUP),
    signal.SIGTERM,
)
_ECHO_S: Final = 5.0
_TERMINAL, _ORDERS, _TELLING = 2, 3, 4
_OUT_OF_THE_WAY: Final = 16
_LOCAL_MODES: Final = 3
_CHARACTERS: Final = 6


def kernel_sends() -> bool:
    """Whether a typed interrupt becomes a signal here; tried on a terminal of our own."""
    ours, theirs = os.openpty()
    ready, said = os.pipe()
    pid = os.fork()
    if pid == 0:
        awaited = {signal.SIGINT, signal.SIGUSR1}
        signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
        os.setsid()
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)
        os.write(said, b".")
        os._exit(int(signal.sigwait(awaited)))  # both are there when this looks; the lower number comes first
    for descriptor in (said, theirs):
        os.close(descriptor)
    os.read(ready, 1)
    os.write(ours, b"\x03")
    select.select([ours], [], [], _ECHO_S)  # the key is echoed once the terminal has dealt with it
    os.kill(pid, signal.SIGUSR1)
    _, status = os.waitpid(pid, 0)
    for descriptor in (ready, ours):
        os.close(descriptor)
    return os.waitstatus_to_exitcode(status) == signal.SIGINT


def split(terminal: int, data: bytes) -> list[bytes | int]:
    """What is typed, with the numbers of signals in place of the keys that mean them."""
    modes = termios.tcgetattr(terminal)
    if not modes[_LOCAL_MODES] & termios.ISIG:
        return [data]
    meaning = {modes[_CHARACTERS][index][0]: int(number) for index, number in _SIGNALS}
    found: list[bytes | int] = []
    text = b""
    for byte in data:
        if byte in meaning:
            found += [text, meaning[byte]]
            text = b""
        else:
            text += bytes([byte])
    return [each for each in (*found, text) if each != b""]


def lead(terminal: int, orders: int, telling: int, become: Callable[[int], None]) -> NoReturn:
    """Lead the terminal's session: start the program in front, pass signals to who is in front, end as the program ended.

    Numbers come as single bytes on `orders`; the program's pid goes out on `telling` (see `heard`). `become` gets that descriptor and does not return.
    """
    moved = [
        fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, _OUT_OF_THE_WAY) for each in (terminal, orders, telling)
    ]
    for target, source in enumerate((moved[0], moved[0], *moved)):  # the terminal is 0 to 2
        os.dup2(source, target, inheritable=target <= _TERMINAL)
    os.closerange(_TELLING + 1, 1 << 20)
    wake, waking = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        os.tcsetpgrp(_TERMINAL, os.getpid())
        signal.set_wakeup_fd(-1)
        for number in (*_IGNORED, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        become(_TELLING)
    os.write(_TELLING, b"\0" + struct.pack("=I", pid))
    os.close(_TELLING)
    while True:
        ready, _, _ = select.select([_ORDERS, wake], [], [])
        if _ORDERS in ready:
            _obey(os.read(_ORDERS, 1), pid)
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            _end_as(status)


def heard(told: bytes) -> tuple[int, str]:
    """The program's pid, and why it could not be started, from all that came on `telling`: in either order."""
    at = told.find(b"\0")
    if at < 0:
        return 0, told.decode(errors="replace")
    (pid,) = struct.unpack_from("=I", told, at + 1)
    return pid, (told[:at] + told[at + 5 :]).decode(errors="replace")


def _obey(order: bytes, pid: int) -> None:
    """At the end of the orders the keeper is gone, and the program goes, too."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if order:
            os.killpg(os.tcgetpgrp(_TERMINAL), order[0])
        else:
            os.kill(pid, signal.SIGKILL)


def _end_as(status: int) -> NoReturn:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        with contextlib.suppress(OSError):  # two of them have no action to restore
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status))
