"""Fresh sandboxes kept ready. Each is handed out once; nothing ever comes back into the pool."""

import asyncio
from collections import deque

from temper.runtime.errors import TemperError
from temper.sandbox.engine.base import Backend, Limits, Sandbox


class WarmPool:
    """Up to `size` sandboxes with the default limits, made ahead of need."""

    def __init__(self, backend: Backend, limits: Limits, size: int) -> None:
        self._backend = backend
        self._limits = limits
        self._size = size
        self._ready: deque[Sandbox] = deque()
        self._wanted = asyncio.Event()
        self._wanted.set()
        self._made = 0
        self._closed = False

    def __len__(self) -> int:
        return len(self._ready)

    def take(self, limits: Limits) -> Sandbox | None:
        """A live sandbox with exactly these sandbox-wide limits, or None; the pool refills in the background."""
        if not _same_sandbox(limits, self._limits):
            return None
        while self._ready:
            sandbox = self._ready.popleft()
            self._wanted.set()
            if sandbox.alive:
                return sandbox
        return None

    async def fill(self) -> None:
        """Keep the pool full, for ever. A failed creation is the next caller's to report, so it only pauses this."""
        while not self._closed:
            await self._wanted.wait()
            self._wanted.clear()
            while len(self._ready) < self._size and not self._closed:
                self._made += 1
                try:
                    self._ready.append(await self._backend.create(f"warm-{self._made}", self._limits))
                except TemperError:
                    break

    async def close(self) -> None:
        """Destroy what is ready."""
        self._closed = True
        self._wanted.set()
        while self._ready:
            await self._ready.popleft().destroy()


def _same_sandbox(one: Limits, other: Limits) -> bool:
    """Whether they agree in what is fixed when a sandbox is made; the rest is per command."""
    return all(
        getattr(one, name) == getattr(other, name)
        for name in ("memory_bytes", "cpus", "pids", "disk_bytes", "open_files", "file_bytes")
    )
