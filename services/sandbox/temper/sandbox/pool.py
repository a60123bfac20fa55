"""Fresh sandboxes kept ready. Each is handed out once; nothing ever comes back into the pool."""

import asyncio
from collections import OrderedDict, deque
from typing import Any, Final

from temper.runtime.errors import TemperError
from temper.sandbox.engine.base import Backend, Limits, Sandbox

_KINDS: Final = 3
_FIXED: Final = ("memory_bytes", "cpus", "pids", "disk_bytes", "open_files", "file_bytes")
"""What is settled when a sandbox is made; the other limits are per command."""

Kind = tuple[Any, ...]


class WarmPool:
    """Up to `size` sandboxes, shared out among the kinds of limits that were asked for last."""

    def __init__(self, backend: Backend, limits: Limits, size: int) -> None:
        self._backend = backend
        self._size = size
        self._kinds: OrderedDict[Kind, Limits] = OrderedDict({_kind(limits): limits})
        self._ready: dict[Kind, deque[Sandbox]] = {}
        self._wanted = asyncio.Event()
        self._wanted.set()
        self._made = 0
        self._closed = False
        self._busy = asyncio.Lock()

    def __len__(self) -> int:
        return sum(len(queue) for queue in self._ready.values())

    def take(self, limits: Limits) -> Sandbox | None:
        """A live sandbox of this kind, or None; the pool refills in the background and remembers the kind."""
        kind = _kind(limits)
        self._kinds[kind] = limits
        self._kinds.move_to_end(kind)
        if len(self._kinds) > _KINDS:
            self._kinds.popitem(last=False)
        self._wanted.set()
        queue = self._ready.get(kind, deque())
        while queue:
            sandbox = queue.popleft()
            if sandbox.alive:
                return sandbox
        return None

    async def fill(self) -> None:
        """Keep the pool full, for ever. A failed creation is the next caller's to report, so it only pauses this."""
        while not self._closed:
            await self._wanted.wait()
            self._wanted.clear()
            async with self._busy:
                await self._refill()

    async def _refill(self) -> None:
        try:
            await self._discard()
            while (kind := self._missing()) is not None and not self._closed:
                self._made += 1
                sandbox = await self._backend.create(f"warm-{self._made}", self._kinds[kind])
                self._ready.setdefault(kind, deque()).append(sandbox)
        except TemperError:
            return

    def _missing(self) -> Kind | None:
        """The most recent kind that has less than its share."""
        share = max(1, self._size // len(self._kinds)) if self._size else 0
        if len(self) >= self._size:
            return None
        return next((kind for kind in reversed(self._kinds) if len(self._ready.get(kind, ())) < share), None)

    async def _discard(self) -> None:
        """Destroy what nobody asks for any more, and what is over a kind's share."""
        share = max(1, self._size // len(self._kinds))
        for kind, queue in list(self._ready.items()):
            while len(queue) > (share if kind in self._kinds else 0):
                await queue.popleft().destroy()
            if not queue:
                del self._ready[kind]

    async def close(self) -> None:
        """Destroy what is ready, and what is being made."""
        self._closed = True
        self._wanted.set()
        async with self._busy:
            for queue in self._ready.values():
                while queue:
                    await queue.popleft().destroy()


def _kind(limits: Limits) -> Kind:
    return tuple(getattr(limits, name) for name in _FIXED)
