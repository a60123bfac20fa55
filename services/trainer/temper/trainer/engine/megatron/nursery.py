"""The process that ranks are born from: it has imported torch and Megatron once, and forks a rank in a moment.

A group that is lost costs its restart no imports. The nursery holds no policy and never computes; it waits for words on a socket, and
ends when the socket does, so when the service ends in whatever way. Its children are killed by the kernel when it ends.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from temper.runtime.errors import Unavailable

START_S = 180.0
"""Longest start: it imports torch and Megatron."""
WORD_S = 30.0
"""Longest answer afterwards."""
END_S = 10.0
"""Longest wait for its end before it is killed."""
WORD = 1 << 16
"""Longest word, bytes."""
TAIL = 2000
"""Characters of last words that are passed on."""


class NurseryLost(Unavailable):
    """The nursery ended, and with it all ranks that came from it."""


class Nursery:
    """Starts ranks and knows how they ended. Safe to use from several threads."""

    def __init__(self, *, threads: int) -> None:
        self._lock = threading.Lock()
        self._folder = tempfile.TemporaryDirectory(prefix="temper-ranks-", ignore_cleanup_errors=True)
        self._words = Path(self._folder.name) / "nursery.log"
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        settled = {
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": str(threads),
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # asking for devices must not start CUDA before a fork
        }
        with self._words.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter, arguments made here
                [sys.executable, "-m", f"{__package__}.rank", str(theirs.fileno()), str(threads)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # an interrupt at the terminal is for the service, which drains
                env={**os.environ, **settled},
            )
        theirs.close()
        self.close = weakref.finalize(self, _end, self._process, self._line, self._folder)
        """Ends it and all its ranks; also when it is forgotten or the service exits."""
        with self._lock:
            self._hear(START_S)

    @property
    def alive(self) -> bool:
        """Whether it can start ranks."""
        return self.close.alive and self._process.poll() is None

    def born(self, said: Mapping[str, Any], line: socket.socket) -> int:
        """Fork a rank that answers on ``line``; its process id. Raises NurseryLost."""
        return int(self._ask({"op": "born", **said}, [line.fileno()])["pid"])

    def ended(self, pids: Sequence[int]) -> dict[int, int]:
        """Exit codes of ranks that have ended, negative for signals. They keep their process ids until ``end``."""
        found = self._ask({"op": "ended", "pids": list(pids)})["codes"]
        return {int(pid): int(code) for pid, code in found.items()}

    def end(self, pids: Sequence[int]) -> None:
        """Kill ranks and let go of their process ids: they hold nothing that is not in a snapshot."""
        self._ask({"op": "end", "pids": list(pids)})

    def _ask(self, said: Mapping[str, Any], files: Sequence[int] = ()) -> Mapping[str, Any]:
        with self._lock:
            try:
                self._line.settimeout(WORD_S)
                socket.send_fds(self._line, [json.dumps(said).encode()], list(files))
            except OSError as error:
                raise self._lost(error) from error
            return self._hear(WORD_S)

    def _hear(self, seconds: float) -> Mapping[str, Any]:
        try:
            self._line.settimeout(seconds)
            word = self._line.recv(WORD)
        except OSError as error:
            raise self._lost(error) from error
        if not word:
            raise self._lost(ConnectionResetError("it ended"))
        return json.loads(word)

    def _lost(self, error: OSError) -> NurseryLost:
        words = self._words.read_text(errors="replace")[-TAIL:] if self._words.exists() else ""
        self.close()
        return NurseryLost(f"the process that starts ranks is gone: {error}\n{words}".strip())


def _end(
    process: subprocess.Popen[bytes], line: socket.socket, folder: tempfile.TemporaryDirectory[str]
) -> None:
    line.close()  # it ends and reaps its ranks
    try:
        process.wait(timeout=END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    folder.cleanup()
