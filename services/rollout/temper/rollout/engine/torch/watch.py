"""Watches the step thread from the event loop: a step that does not end is a failure with a name.

A thread cannot be killed. So a hung one is given up: whoever waits is told what hangs, the engine is no longer alive, and
those above it make another. If the thread comes back after all, it ends. A step that hangs while it holds the interpreter
stops the event loop too; that is for the process's own probes.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

_LOOK_S = 0.5  # between looks; the limit is far longer


class Watch:
    """Since when the thread is at work, as it says itself."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        """Seconds that one step, with what was posted before it, may take."""
        self.monotonic: Callable[[], float] = time.monotonic
        """Not the clock of deadlines: a simulated one may leap in the middle of a step."""
        self._since: float | None = None

    def enter(self) -> None:
        """On the thread: work begins."""
        self._since = self.monotonic()

    def leave(self) -> None:
        """On the thread: it waits for work."""
        self._since = None

    def _overdue(self) -> bool:
        since = self._since
        return since is not None and self.monotonic() - since > self.limit_s

    async def until_overdue(self) -> None:
        """Return when a step is over its limit."""
        while not self._overdue():  # noqa: ASYNC110 - an event would cost every step
            await asyncio.sleep(min(_LOOK_S, self.limit_s / 4))

    def culprit(self, thread: threading.Thread, running: Sequence[str]) -> str:
        """What hangs where, and the ids of what it was about."""
        others = f" and {len(running) - 3} more" if len(running) > 3 else ""
        about = f", with {', '.join(running[:3])}{others}" if running else ""
        return f"a step hangs for over {self.limit_s:g} s in {_whereabouts(thread)}{about}"


def _whereabouts(thread: threading.Thread) -> str:
    """The function that a thread is in, and what called it."""
    frame = sys._current_frames().get(thread.ident or 0)  # noqa: SLF001 - nothing else tells of another thread
    if frame is None:
        return "a thread that has ended"
    stack = traceback.extract_stack(frame)
    return " < ".join(
        f"{each.name} ({Path(each.filename).name}:{each.lineno})" for each in reversed(stack[-3:])
    )
