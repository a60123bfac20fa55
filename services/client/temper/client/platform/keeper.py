"""Keeps one process alive: restarts with backoff, and an end to patience.

start ──▶ running ──dies──▶ waiting (backoff) ──▶ running …
             │                  └── died more often than the limit allows ──▶ given up (Unavailable)
             └── stop ──▶ drained or killed
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from temper.client.platform.child import Child
from temper.runtime.errors import TemperError, Unavailable

Start = Callable[[], Awaitable[Child]]
STARTING_DEATHS = (
    2  # before it was ever ready, dying again and again has a cause that restarting does not cure
)
HOPELESS = 2  # exit status of a service whose configuration is wrong: the next start would end the same way


@dataclass(frozen=True, slots=True)
class Intensity:
    """How often a process may die. Example: `Intensity(deaths=8, window_s=60)`."""

    deaths: int = 10
    """Deaths within the window after which it is given up."""
    window_s: float = 60.0
    """Seconds that a death counts."""
    first_delay_s: float = 0.1
    """Pause before the first restart."""
    most_delay_s: float = 5.0
    """Longest pause; it doubles from death to death within the window."""


@dataclass(slots=True)
class Deaths:
    """Pure: how long to wait before the next start, or None for never again."""

    limit: Intensity
    """Bounds."""
    _times: deque[float] = field(default_factory=deque[float])

    def next_delay(self, now: float, *, settled: bool = True) -> float | None:
        """Count a death at `now` (monotonic seconds); a process that never got ready has less patience."""
        self._times.append(now)
        while self._times and self._times[0] <= now - self.limit.window_s:
            self._times.popleft()
        if len(self._times) > (self.limit.deaths if settled else STARTING_DEATHS):
            return None
        return min(self.limit.first_delay_s * 2 ** (len(self._times) - 1), self.limit.most_delay_s)


class Keeper:
    """One process under care."""

    def __init__(
        self,
        name: str,
        start: Start,
        *,
        changed: Callable[[str], None],
        log_tail: Callable[[], str],
        limit: Intensity | None = None,
    ) -> None:
        self.name = name
        self.restarts = 0
        self.settled = False
        """Set it once the process has been ready."""
        self._start = start
        self._changed = changed
        self._log_tail = log_tail
        self._deaths = Deaths(limit or Intensity())
        self._child: Child | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return self._child.pid if self._child else None

    async def begin(self) -> None:
        """Start the process, and care for it from now on."""
        self._child = await self._start()
        self._task = asyncio.create_task(self._care(), name=f"keep {self.name}")

    async def failed(self) -> None:
        """Wait until the process is given up; raises Unavailable then."""
        if self._task is not None:
            await asyncio.shield(self._task)

    async def stop(self, grace_s: float) -> bool:
        """End the process and the care. Whether it drained in time."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        child, self._child = self._child, None
        return await child.stop(grace_s) if child else True

    def kill(self) -> None:
        """End the process at once, without waiting."""
        if self._task is not None:
            self._task.cancel()
        if self._child is not None:
            self._child.kill()

    async def _care(self) -> None:
        while True:
            assert self._child is not None
            status = await self._child.wait()
            self._child = None
            await self._revive(status)

    async def _revive(self, status: int) -> None:
        """Start it again after a pause; a start that fails counts as a death."""
        while self._child is None:
            await asyncio.sleep(self._pause(status))
            try:
                self._child = await self._start()
            except TemperError as error:
                self._changed(f"{self.name} does not start: {error}")
        self.restarts += 1
        self._changed(f"{self.name} {_how(status)} and was restarted")

    def _pause(self, status: int) -> float:
        delay = (
            None if status == HOPELESS else self._deaths.next_delay(time.monotonic(), settled=self.settled)
        )
        if delay is None:
            tail = self._log_tail()
            raise Unavailable(f"{self.name} {_how(status)} and is given up", hint=f"end of its log:\n{tail}")
        return delay


def _how(status: int) -> str:
    if status < 0:
        return f"was killed by signal {-status}"
    return "ended" if status == 0 else f"ended with status {status}"
