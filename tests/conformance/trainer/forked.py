"""The trainer service in processes forked from one that has imported everything: a start costs a moment, not seconds.

For tests that start and kill it many times; what runs is the service, its configuration and its signals as ever.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.conformance.processes import STOP_S, Service

PRELOADED = ["torch", "temper.trainer.__main__", "temper.trainer.session", "temper.trainer.engine.torch"]


def serve(arguments: Sequence[str], log: str) -> None:
    """The life of one process."""
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    from temper.runtime.service import run_service
    from temper.trainer.__main__ import build
    from temper.trainer.config import TrainerConfig

    sys.exit(run_service("trainer", TrainerConfig, build, arguments))


class Forked(Service):
    """`Service`, its processes forked."""

    def start(self) -> None:
        """Start it; its readiness is for the test to find out."""
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__, *PRELOADED])
        arguments = self._command[self._command.index(f"temper.{self.name}") + 1 :]
        self._forked = context.Process(target=serve, args=(arguments, str(Path(self.log))))
        self._forked.start()

    def kill(self) -> None:
        """As by `kill -9`."""
        self._forked.kill()
        self._forked.join(STOP_S)

    async def stop(self) -> int:
        """As by SIGTERM; returns the exit code."""
        self._forked.terminate()
        await asyncio.to_thread(self._forked.join, 6 * STOP_S)
        assert self._forked.exitcode is not None
        return self._forked.exitcode
