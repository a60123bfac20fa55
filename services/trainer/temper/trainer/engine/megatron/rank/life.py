"""The life of a rank, from its fork: questions come on a socket, answers go back, and it never outlives the nursery."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from temper.runtime.errors import Rejected
from temper.trainer.engine.megatron import adapter
from temper.trainer.engine.megatron.pulse import Pulse
from temper.trainer.engine.megatron.rank.worker import Worker
from temper.trainer.engine.megatron.wire import Frame, receive, send

PR_SET_PDEATHSIG = 1


def live(said: Mapping[str, Any], line: int, nursery: int) -> NoReturn:
    """Answer until the service is gone. Never returns: a fork must not go on as its parent."""
    folder, rank = Path(said["folder"]), int(said["rank"])
    _settle(folder, rank, nursery)
    try:
        _serve(said, folder, rank, socket.socket(fileno=line))
    except ConnectionError:
        os._exit(0)


def _settle(folder: Path, rank: int, nursery: int) -> None:
    """A process of its own: its words go to its file, and it dies with the nursery."""
    os.setsid()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != nursery:  # it died before the kernel knew
        os._exit(0)
    log = os.open(folder / f"rank-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=False)
    os.environ["LOCAL_RANK"] = str(rank)
    sys.excepthook = partial(_last_words, folder, rank)


def _serve(said: Mapping[str, Any], folder: Path, rank: int, line: socket.socket) -> NoReturn:
    pulse = Pulse(folder / "pulse", said["ranks"])

    def beat() -> None:
        pulse.beat(rank)

    with adapter.on_cpu():
        worker = Worker(rank, said["ranks"], str(folder / "rendezvous"), said["deadline_s"], beat)
        sys.excepthook = partial(_last_words, folder, rank)  # torch.distributed puts its own there
        send(line, Frame({"hello": rank}))
        while True:
            frame = receive(line)
            beat()
            try:
                answer = worker.answer(frame)
            except Rejected as error:
                answer = Frame({"rejected": error.message, "field": error.field, "hint": error.hint})
            send(line, answer)
            beat()


def _last_words(
    folder: Path, rank: int, kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> NoReturn:
    """Say why and when, and end at once: others wait for this rank, and the first to end is the one to look at."""
    (folder / f"rank-{rank}.died").write_text(repr(time.monotonic()))
    traceback.print_exception(kind, error, trace)
    sys.stderr.flush()
    os._exit(1)
