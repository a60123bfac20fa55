"""Sandboxes kept ready. Whoever comes gets one that lives, fresh or as new; one that was reset too often is replaced.

The pool holds at least `least` for the kinds of limits asked for last, and up to `most` while tasks are announced.
"""

import asyncio
from collections import OrderedDict, deque
from dataclasses import fields
from typing import Any, Final

from temper.runtime.clock import Clock, SystemClock
from temper.runtime.errors import TemperError
from temper.sandbox.engine.base import Backend, Limits, Sandbox
from temper.sandbox.forecast import Forecast

_KINDS: Final = 3
_PER_COMMAND: Final = frozenset({"wall_s", "cpu_s", "output_bytes", "grace_s"})
"""What is not settled when a sandbox is made."""
_FIXED: Final = tuple(each.name for each in fields(Limits) if each.name not in _PER_COMMAND)

Kind = tuple[Any, ...]


class WarmPool:
    """See the module. `recycles` is how often one sandbox may be reset for another tenant; 0 for never."""

    def __init__(
        self,
        backend: Backend,
        limits: Limits,
        least: int,
        most: int | None = None,
        *,
        recycles: int = 0,
        clock: Clock | None = None,
    ) -> None:
        self._backend = backend
        self._least = least
        self._most = max(least, most or 0)
        self._recycles = recycles
        self._clock = clock or SystemClock()
        self._kinds: OrderedDict[Kind, Limits] = OrderedDict({_kind(limits): limits})
        self._forecasts: dict[Kind, Forecast] = {_kind(limits): Forecast()}
        self._ready: dict[Kind, deque[Sandbox]] = {}
        self._resets: dict[Sandbox, int] = {}
        self._wanted = asyncio.Event()
        self._wanted.set()
        self._made = 0
        self._closed = False
        self._busy = asyncio.Lock()

    def __len__(self) -> int:
        return sum(len(queue) for queue in self._ready.values())

    def expect(self, limits: Limits, tasks: int) -> None:
        """So many tasks with these limits will be played soon."""
        self._forecast(limits).announce(tasks, self._clock.monotonic())
        self._wanted.set()

    def take(self, limits: Limits) -> Sandbox | None:
        """A live sandbox of this kind, or None; the pool refills in the background and remembers the kind."""
        self._forecast(limits).take(self._clock.monotonic())
        self._wanted.set()
        queue = self._ready.get(_kind(limits), deque())
        while queue:
            sandbox = queue.popleft()
            if sandbox.alive:
                return sandbox
            self._resets.pop(sandbox, None)
        return None

    def _forecast(self, limits: Limits) -> Forecast:
        """The forecast of a kind, which is now the last one asked for."""
        kind = _kind(limits)
        self._kinds[kind] = limits
        self._kinds.move_to_end(kind)
        if len(self._kinds) > _KINDS:
            gone, _ = self._kinds.popitem(last=False)
            self._forecasts.pop(gone, None)
        return self._forecasts.setdefault(kind, Forecast())

    async def retire(self, sandbox: Sandbox, limits: Limits) -> None:
        """A tenant is gone: destroy its sandbox, or reset it for another one if one is wanted."""
        kind = _kind(limits)
        resets = self._resets.pop(sandbox, 0)
        if self._closed or resets >= self._recycles or not sandbox.alive or self._lacking(kind) <= 0:
            await sandbox.destroy()
            return
        try:
            await sandbox.reset()
        except TemperError:
            await sandbox.destroy()
            return
        if self._closed or self._lacking(kind) <= 0:
            await sandbox.destroy()
            return
        self._resets[sandbox] = resets + 1
        self._ready.setdefault(kind, deque()).append(sandbox)

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

    def _goal(self, kind: Kind) -> int:
        """How many of a kind should be ready: its share of the least, or what is announced."""
        if kind not in self._kinds or not self._most:
            return 0
        share = max(1, self._least // len(self._kinds)) if self._least else 0
        return min(self._most, max(share, self._forecasts[kind].demand(self._clock.monotonic())))

    def _lacking(self, kind: Kind) -> int:
        room = self._most - len(self)
        return min(room, self._goal(kind) - len(self._ready.get(kind, ())))

    def _missing(self) -> Kind | None:
        """The most recent kind that has less than its goal."""
        return next((kind for kind in reversed(self._kinds) if self._lacking(kind) > 0), None)

    async def _discard(self) -> None:
        """Destroy what nobody asks for any more, and what is over a kind's goal."""
        self._resets = {sandbox: resets for sandbox, resets in self._resets.items() if sandbox.alive}
        for kind, queue in list(self._ready.items()):
            while len(queue) > self._goal(kind):
                sandbox = queue.popleft()
                self._resets.pop(sandbox, None)
                await sandbox.destroy()
            if not queue:
                self._ready.pop(kind, None)

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
