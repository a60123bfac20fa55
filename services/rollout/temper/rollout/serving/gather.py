"""Several pieces of work whose first failure ends the others."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


async def gathered(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """All results in order; a failure or a cancellation cancels what still runs and waits for it."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
