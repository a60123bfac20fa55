"""``python -m temper.trainer.engine.megatron.rank FD THREADS``: the nursery. It imports everything, then forks ranks when it is told to.

Words come on a socket; when the service ends, in whatever way, the socket ends and the nursery with it. Ranks ask the kernel to be
killed when the nursery ends.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from temper.trainer.engine.megatron import adapter
from temper.trainer.engine.megatron.nursery import WORD


class Children:
    """Ranks that were forked here."""

    def __init__(self) -> None:
        self._pids: set[int] = set()

    def add(self, pid: int) -> None:
        """A new one."""
        self._pids.add(pid)

    def all(self) -> list[int]:
        """Process ids of those that nobody has let go of."""
        return list(self._pids)

    def ended(self, pids: Sequence[int]) -> dict[int, int]:
        """Exit codes of those that have ended; they stay zombies, so that nobody else gets their process ids."""
        found: dict[int, int] = {}
        for pid in pids:
            info = (
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) if pid in self._pids else None
            )
            if info is not None:
                found[pid] = info.si_status if info.si_code == os.CLD_EXITED else -info.si_status
        return found

    def end(self, pids: Sequence[int]) -> None:
        """Kill and forget."""
        known = [pid for pid in pids if pid in self._pids]
        for pid in known:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in known:
            os.waitpid(pid, 0)
            self._pids.remove(pid)


def main() -> None:
    """Import, say hello, fork."""
    line = socket.socket(fileno=int(sys.argv[1]))
    adapter.install()
    warnings.filterwarnings("ignore")  # Megatron says at import which extensions for GPUs are missing
    import torch

    torch.set_num_threads(int(sys.argv[2]))
    with adapter.on_cpu():
        from temper.trainer.algorithms import registry
        from temper.trainer.engine.megatron.rank.life import live

        registry()  # imports them all
    children = Children()
    line.send(b"{}")
    while True:
        word, files, _, _ = socket.recv_fds(line, WORD, 1)
        if not word:
            children.end(children.all())
            os._exit(0)
        said: dict[str, Any] = json.loads(word)
        answer: dict[str, Any] = {}
        match said["op"]:
            case "born":
                sys.stdout.flush()
                sys.stderr.flush()
                nursery = os.getpid()
                pid = os.fork()
                if not pid:
                    line.close()
                    live(said, files[0], nursery)
                os.close(files[0])
                children.add(pid)
                answer = {"pid": pid}
            case "ended":
                answer = {"codes": children.ended(said["pids"])}
            case _:
                children.end(said["pids"])
        line.send(json.dumps(answer).encode())


if __name__ == "__main__":
    main()
