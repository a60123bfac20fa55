"""One-for-one supervision: each piece of work is restarted by itself, and too many failures end the process.

This is the only place that catches everything: a failure of any kind is either repaired by a restart or ends in
`GaveUp`, which makes the process exit non-zero so that the layer above (systemd, Kubernetes, the embedded platform)
repairs it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from temper.runtime.clock import Clock, SystemClock
from temper.runtime.errors import Exhausted, TemperError

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

CANCEL_AGAIN_S = 10.0  # longer than any honest teardown
Work = Callable[[], Awaitable[object]]


class GaveUp(Exhausted):
    """A child failed more often than its limit; `__cause__` is the last failure."""


@dataclass(frozen=True, slots=True)
class Restarts:
    """How much failure is normal. Example: `Restarts(most=3, within_s=10)`."""

    most: int = 8
    """Restarts within the window; one more failure gives up."""
    within_s: float = 60.0
    """The window, seconds."""
    first_pause_s: float = 0.1
    """Pause before the first restart of a series; doubles with each."""
    longest_pause_s: float = 5.0
    """Bound of the pause."""


class Supervisor:
    """Runs named coroutines and restarts those that fail. Work that returns is finished."""

    def __init__(self, *, clock: Clock | None = None, restarts: Restarts | None = None) -> None:
        self._clock = clock or SystemClock()
        self._restarts = restarts or Restarts()
        self._children: dict[str, asyncio.Task[None]] = {}
        self._gave_up: asyncio.Future[None] | None = None
        self._stopping = False

    @property
    def running(self) -> list[str]:
        """Names of the work that has not finished."""
        return sorted(self._children)

    def start(self, name: str, work: Work, *, restarts: Restarts | None = None) -> None:
        """Run `work()`; a failure calls it again. A name is free again when its work has finished."""
        if self._stopping:
            raise Exhausted(f"cannot start {name}: stopping")
        if name in self._children:
            raise Exhausted(f"{name} runs already")
        task = asyncio.create_task(self._child(name, work, restarts or self._restarts), name=name)
        self._children[name] = task
        task.add_done_callback(lambda done: self._finished(name, done))

    async def cancel(self, name: str) -> None:
        """End one piece of work; no error if it is not there."""
        task = self._children.pop(name, None)
        if task is not None:
            await _ended(task)

    async def wait(self) -> None:
        """Wait for ever, until a child has failed too often: then raises GaveUp."""
        await asyncio.shield(self._verdict())

    async def stop(self) -> None:
        """End everything, newest first."""
        self._stopping = True
        for name in reversed(list(self._children)):
            await self.cancel(name)

    async def _child(self, name: str, work: Work, limit: Restarts) -> None:
        failures: deque[float] = deque()
        while True:
            try:
                await work()
            except Exception as failure:  # the one broad except: every failure is restarted or fatal
                now = self._clock.monotonic()
                failures.append(now)
                while failures[0] + limit.within_s < now:
                    failures.popleft()
                if len(failures) > limit.most:
                    raise _verdict(name, limit, failure) from failure
                trace = (
                    None if isinstance(failure, TemperError) else failure
                )  # the tree's errors explain themselves
                _log.warning(
                    "restarting", work=name, failures=len(failures), error=str(failure), exc_info=trace
                )
            else:
                return
            await self._clock.sleep(
                min(limit.first_pause_s * 2 ** (len(failures) - 1), limit.longest_pause_s)
            )

    def _finished(self, name: str, task: asyncio.Task[None]) -> None:
        if self._children.get(name) is task:
            del self._children[name]
        if task.cancelled():
            return
        verdict = task.exception()
        if verdict is not None and not self._verdict().done():
            self._verdict().set_exception(verdict)
            self._verdict().exception()  # seen: asyncio need not warn when nobody waits for the verdict

    def _verdict(self) -> asyncio.Future[None]:
        if self._gave_up is None:
            self._gave_up = asyncio.get_running_loop().create_future()
        return self._gave_up


async def _ended(task: asyncio.Task[None]) -> None:
    """Cancel until it ends: a library on the way may swallow one cancellation, and a teardown needs its time."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=CANCEL_AGAIN_S)


def _verdict(name: str, limit: Restarts, failure: Exception) -> GaveUp:
    return GaveUp(
        f"{name} failed more than {limit.most} times within {limit.within_s:g} s, "
        f"last with {type(failure).__name__}: {failure}"
    )
