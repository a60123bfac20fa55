"""Waiting for one command, and measuring it: the wall clock, the meters, the flood of output."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Protocol

from temper.sandbox.engine.base import Evidence, Limits
from temper.sandbox.engine.verdict import Counters, Ending, measure

_CPU_POLL_S: Final = 0.05
_MEMORY_POLL_S: Final = 1.0
"""Also what a command gets to end by itself after one of its processes was killed for memory."""


class Meter(Protocol):
    """Where a sandbox's counters come from: a control group, or what its init reports."""

    def counters(self) -> Counters: ...

    def reset_peak(self) -> None: ...


class ReportedMeter:
    """Counters from init's own reports, for a host without control groups: late, and blind to running children."""

    def __init__(self) -> None:
        self._now = Counters()

    def report(self, event: Mapping[str, Any]) -> None:
        """Take the figures of an `exited` event."""
        peak = max(self._now.peak_memory_bytes, int(event["peak_bytes"]))
        self._now = Counters(cpu_s=float(event["total_cpu_s"]), peak_memory_bytes=peak)

    def counters(self) -> Counters:
        """As last reported."""
        return self._now

    def reset_peak(self) -> None:
        """Start a new high-water mark."""
        self._now = replace(self._now, peak_memory_bytes=0)


class Watch:
    """Waits for the end of one command, whichever comes first, and measures it."""

    def __init__(self, died: "asyncio.Future[None]", meter: Meter, limits: Limits) -> None:
        self._died = died
        self._meter = meter
        self._limits = limits
        meter.reset_peak()
        self._before = meter.counters()
        self._flood: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._started = time.monotonic()
        self._look_at = self._started + _MEMORY_POLL_S
        self._killed = False

    def flood(self) -> None:
        """The output will not end."""
        if not self._flood.done():
            self._flood.set_result(None)

    async def wait(self, ended: "asyncio.Future[Any]") -> Ending:
        """Why the wait is over."""
        until = self._started + self._limits.wall_s
        step = _MEMORY_POLL_S if self._limits.cpu_s is None else _CPU_POLL_S
        awaited = {ended, self._flood, self._died}
        while (remaining := until - time.monotonic()) > 0:
            await asyncio.wait(awaited, timeout=min(step, remaining), return_when=asyncio.FIRST_COMPLETED)
            if ended.done() and not (self._died.done() and ended.result() is None):
                return Ending.FINISHED
            if self._died.done():
                return Ending.DIED
            if self._flood.done():
                return Ending.OUTPUT
            if self._over_cpu():
                return Ending.CPU
            if self._lingers():
                return Ending.MEMORY
        return Ending.WALL

    def _lingers(self) -> bool:
        """Whether a process was killed for memory a while ago, and what is left of the command goes on.

        The kernel picks one process; those that wait for it, or hold the memory, would stay until the wall.
        """
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + _MEMORY_POLL_S
        killed = self._meter.counters().oom_kills > self._before.oom_kills
        lingers, self._killed = killed and self._killed, killed
        return lingers

    def _over_cpu(self) -> bool:
        limit = self._limits.cpu_s
        return limit is not None and self._meter.counters().cpu_s - self._before.cpu_s >= limit

    def evidence(self) -> Evidence:
        """What was measured since the start."""
        return measure(self._before, self._meter.counters(), time.monotonic() - self._started)
