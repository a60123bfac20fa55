"""Answers after a run: the few services that can answer, started on a stopped platform's data for one command.

The platform's loop lives in a thread of its own, so that blocking clients can talk to it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from temper.client.platform.layout import DataDir
from temper.client.platform.services import NAMES
from temper.client.platform.supervisor import READY_S, Platform
from temper.client.sdk.target import Target

T = TypeVar("T")
STOP_S = 60.0  # the platform's own limits are far below


def has_data(data_dir: Path) -> bool:
    """Whether a platform has run in the directory."""
    return DataDir.at(data_dir).broker.is_dir()


@contextmanager
def visited(data_dir: Path, needs: tuple[str, ...], say: Callable[[str], None]) -> Iterator[Target]:
    """A platform of the services in `needs` only, stopped afterwards. Raises what `Platform.start` raises."""
    without = tuple(name for name in NAMES if name not in needs)
    platform = Platform(DataDir.at(data_dir), say=_quiet, without=without)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="platform", daemon=True)
    thread.start()
    say(f"no platform runs in {data_dir}: starting {', '.join(needs)} on its data for this command")
    try:
        yield _result(loop, platform.start(), READY_S + STOP_S)
    finally:
        _result(loop, platform.stop(), STOP_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(STOP_S)
        loop.close()


def _result(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], within_s: float) -> T:
    return asyncio.run_coroutine_threadsafe(work, loop).result(within_s)


def _quiet(_: str) -> None:
    """Starting and stopping is not what the command is about."""
