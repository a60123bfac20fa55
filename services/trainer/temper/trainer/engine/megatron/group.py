"""The rank processes of one engine: started together, asked together, ended together.

A rank that dies, hangs or breaks the protocol takes the group down: whoever asked gets ``RankLost`` and may start another group.
Ranks find each other by a file in the group's own folder and talk over the loopback interface.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from temper.runtime.errors import Rejected, Unavailable
from temper.trainer.engine.megatron.wire import Frame, receive, send

START_S = 180.0
"""Longest start of a process: it imports torch and Megatron."""
CALL_S = 1800.0
"""Longest answer."""
COLLECTIVE_S = 600.0
"""Longest wait of a rank for another."""
TAIL = 2000
"""Characters of a lost rank's last words that are passed on."""


class RankLost(Unavailable):
    """A rank ended or did not answer in time; the group is gone."""


class Group:
    """Processes that hold one policy."""

    def __init__(self, ranks: int, *, threads: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="temper-megatron-")
        self.folder = Path(self._folder.name)
        self.ranks, self._threads = ranks, threads
        self._processes: list[subprocess.Popen[bytes]] = []
        self._lines: list[socket.socket] = []
        self.close = weakref.finalize(self, _end, self._processes, self._lines, self._folder)
        """Ends all ranks; also when the group is forgotten or the service exits."""
        for rank in range(ranks):
            self._start(rank)
        self._answers(time.monotonic() + START_S)

    @property
    def pids(self) -> list[int]:
        """Process ids by rank."""
        return [process.pid for process in self._processes]

    def _start(self, rank: int) -> None:
        ours, theirs = socket.socketpair()
        said = {
            "rank": rank,
            "ranks": self.ranks,
            "rendezvous": str(self.folder / "rendezvous"),
            "deadline_s": COLLECTIVE_S,
            "threads": self._threads,
            "line": theirs.fileno(),
        }
        loopback = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": str(self._threads)}
        with (self.folder / f"rank-{rank}.log").open("wb") as log:
            process = subprocess.Popen(  # noqa: S603 - our own interpreter, arguments made here
                [sys.executable, "-m", f"{__package__}.rank", json.dumps(said)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # an interrupt at the terminal is for the service, which drains
                env={**os.environ, **loopback, "LOCAL_RANK": str(rank)},
            )
        theirs.close()
        self._processes.append(process)
        self._lines.append(ours)

    def ask(self, frame: Frame) -> list[Frame]:
        """The answers of all ranks, by rank. Raises Rejected for what a rank refuses, RankLost for a rank that is gone."""
        try:
            for line in self._lines:
                line.settimeout(CALL_S)
                send(line, frame)
        except OSError as error:
            raise self._lost(f"a rank is gone: {error}") from error
        return self._answers(time.monotonic() + CALL_S)

    def _answers(self, until: float) -> list[Frame]:
        found: list[Frame] = []
        for rank, line in enumerate(self._lines):
            try:
                line.settimeout(max(0.001, until - time.monotonic()))
                found.append(receive(line))
            except OSError as error:
                with suppress(subprocess.TimeoutExpired):  # one that ends by itself has something to say
                    self._processes[rank].wait(timeout=1.0)
                raise self._lost(f"rank {rank} is gone: {error}") from error
        for answer in found:
            if "rejected" in answer.head:
                raise Rejected(answer.head["rejected"], field=answer.head["field"], hint=answer.head["hint"])
        return found

    def _lost(self, why: str) -> RankLost:
        words = self._last_words()
        self.close()
        return RankLost(f"{why}{words}")

    def _last_words(self) -> str:
        """What ranks that ended by themselves wrote last."""
        said: list[str] = []
        for rank, process in enumerate(self._processes):
            code = process.poll()
            text = (self.folder / f"rank-{rank}.log").read_text(errors="replace")[-TAIL:]
            if code not in (None, 0, -signal.SIGKILL) and text:
                said.append(f"rank {rank} (exit {code}): {text}")
        return "".join(f"\n{each}" for each in said)


def _end(
    processes: Sequence[subprocess.Popen[bytes]],
    lines: Sequence[socket.socket],
    folder: tempfile.TemporaryDirectory[str],
) -> None:
    """Kill: ranks hold nothing that is not in a snapshot."""
    for process in processes:
        process.kill()
    for line in lines:
        line.close()
    for process in processes:
        process.wait()
        if process.stdin is not None:
            process.stdin.close()
    folder.cleanup()
