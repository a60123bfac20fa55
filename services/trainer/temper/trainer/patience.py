"""Bounded retries around single effects: the broker or a store may be away for a while, but not for ever."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from temper.runtime.clock import Clock
from temper.runtime.errors import Exhausted, Unavailable
from temper.runtime.telemetry import get_logger

T = TypeVar("T")

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0


class Patience:
    """Repeats idempotent effects. Example: ``await patience(lambda: blobs.put(key, data), "weights")``."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds

    async def __call__(self, effect: Callable[[], Awaitable[T]], what: str) -> T:
        """The effect's result; raises the last Unavailable or Exhausted, with ``what`` named, when the patience is used up."""
        give_up = self._clock.monotonic() + self._seconds
        pause = FIRST_PAUSE_S
        while True:
            try:
                return await effect()
            except (Unavailable, Exhausted) as error:
                if self._clock.monotonic() + pause > give_up:
                    message = f"{what}: nothing came of it within {self._seconds:g} s: {error.message}"
                    raise type(error)(message, field=error.field, hint=error.hint) from error
                get_logger().warning("trainer.waiting", what=what, error=str(error))
            await self._clock.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)
