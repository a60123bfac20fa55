"""The database on threads of its own: one that writes, one that answers. Nothing here blocks the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from temper.runtime.clock import Clock
from temper.runtime.errors import Exhausted, Unavailable
from temper.telemetry.engine.base import Bounds, Engine, Result
from temper.telemetry.rows import Batch

T = TypeVar("T")
MARGIN_S = 10.0  # above a query's own limit, for waiting behind another one


class Storage:
    """An engine, opened when it is first needed: loading the embedded one takes a second and 300 MB."""

    def __init__(self, engine: Engine, clock: Clock, *, waiting: int) -> None:
        self._engine = engine
        self._clock = clock
        self._most_waiting = waiting
        self._waiting = 0
        self._is_open = False
        self._opening = asyncio.Lock()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="clickhouse-write")
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="clickhouse-read")

    async def open(self) -> None:
        """Open it if it is not; Unavailable if it cannot be reached."""
        async with self._opening:
            if not self._is_open:
                await self._run(self._writer, self._engine.open)
                self._is_open = True

    async def insert(self, batches: Iterable[Batch]) -> None:
        """Store batches one after another; returns when they are durable."""
        await self.open()
        for batch in batches:
            await self._run(self._writer, lambda batch=batch: self._engine.insert(batch))

    async def positions(self) -> dict[str, str]:
        """How far each topic was read."""
        await self.open()
        return await self._run(self._writer, self._engine.positions)

    async def query(self, sql: str, parameters: Mapping[str, Any], bounds: Bounds) -> Result:
        """Ask. Exhausted when too many wait, Unavailable when the answer does not come in time."""
        if self._waiting >= self._most_waiting:
            raise Exhausted(f"{self._waiting} questions are waiting already", hint="ask again in a moment")
        self._waiting += 1
        try:
            async with self._clock.timeout(bounds.timeout_s + MARGIN_S):
                await self.open()
                return await self._run(self._reader, lambda: self._engine.query(sql, parameters, bounds))
        except TimeoutError:
            raise Unavailable(
                f"no answer within {bounds.timeout_s:g} s: other questions come first"
            ) from None
        finally:
            self._waiting -= 1

    async def close(self) -> None:
        """Finish what runs, then let go."""
        if self._is_open:
            self._is_open = False
            await self._run(self._reader, lambda: None)
            await self._run(self._writer, self._engine.close)
        self._reader.shutdown(wait=False)
        self._writer.shutdown(wait=False)

    @staticmethod
    async def _run(thread: ThreadPoolExecutor, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(thread, call)
