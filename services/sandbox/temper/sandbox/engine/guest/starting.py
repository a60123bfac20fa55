"""Starting a program of a session: on descriptors of its own or on a terminal, and telling why it could not be started."""

import fcntl
import os
import signal
import termios
from collections.abc import Callable
from typing import Final, NoReturn

from temper.sandbox.engine.guest import keys

_OUT_OF_THE_WAY: Final = 32
"""Descriptors from here on belong to nobody; the program's own are moved there first, so that none covers another."""


class Start:
    """A program to start."""

    def __init__(self, argv: list[str], env: dict[str, str], cwd: str) -> None:
        self.argv = argv
        self.env = env
        self.cwd = cwd

    def execute(self) -> None:
        """Become it. Raises OSError, ValueError."""
        if self.cwd:
            os.chdir(self.cwd)
        os.execvpe(self.argv[0], self.argv, self.env)  # noqa: S606 - a shell is the last thing wanted here


def spawn(become: Callable[[int], None]) -> tuple[int, bytes]:
    """Fork; the child's pid, and what was told on the way to the program: why it could not be started, or nothing."""
    told, telling = os.pipe()
    pid = os.fork()
    if pid == 0:
        _try(lambda: become(telling), telling)
    os.close(telling)
    text = b""
    while data := os.read(told, 4096):
        text += data
    os.close(told)
    return pid, text


def _try(become: Callable[[], None], telling: int) -> NoReturn:
    try:
        become()
    except (OSError, ValueError) as error:
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        os.write(telling, text.encode())
    finally:
        os._exit(127)


def become_alone(start: Start, descriptors: list[int], *, terminal: bool) -> None:
    """Become it as the leader of a session of its own. Raises OSError, ValueError."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.setsid()
    if terminal:
        fcntl.ioctl(descriptors[0], termios.TIOCSCTTY, 0)
    moved = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, _OUT_OF_THE_WAY) for each in descriptors]
    for target, source in enumerate(moved):
        os.dup2(source, target)
    start.execute()


def become_led(start: Start, terminal: int, orders: int, telling: int) -> NoReturn:
    """Become its leader, see `keys.lead`. Raises OSError."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    keys.lead(terminal, orders, telling, lambda telling: _try(start.execute, telling))
