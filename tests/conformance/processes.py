"""One service as a real process, for tests that treat it as a black box."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from temper.runtime.embedded import NatsServer

STOP_S = 20.0


class Service:
    """`python -m temper.<name>` against a broker."""

    def __init__(self, name: str, broker: NatsServer, root: Path, **settings: object) -> None:
        self.name = name
        self.log = root / f"{name}.log"
        values = {
            "bus.url": broker.url,
            "bus.token_file": broker.token_file,
            "blobs.url": (root / "objects").as_uri(),
            **{key.replace("__", "."): value for key, value in settings.items()},
        }
        sets = [part for key, value in values.items() for part in ("--set", f"{key}={value}")]
        self._command = [sys.executable, "-m", f"temper.{name}", "--exit-with-parent", *sets]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; its readiness is for the test to find out."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"}
            )

    def kill(self) -> None:
        """As by `kill -9`."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(STOP_S)

    async def stop(self) -> int:
        """As by SIGTERM; returns the exit code."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        return await asyncio.to_thread(self._process.wait, STOP_S)


@asynccontextmanager
async def running(*services: Service) -> AsyncIterator[None]:
    """Start services, stop them afterwards whatever happens."""
    for service in services:
        service.start()
    try:
        yield
    finally:
        for service in reversed(services):
            await service.stop()
