"""Ctrl-C once asks, twice orders; SIGTERM and SIGHUP ask like Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stops:
    """Listens from `listen` to the end of the loop. `asked` is set by the first signal, `order` called by the second."""

    def __init__(self, order: Callable[[], None]) -> None:
        self.asked = asyncio.Event()
        self.number: int = signal.SIGINT
        self._order = order

    @property
    def exit_code(self) -> int:
        """128 + signal, as a shell would say it."""
        return 128 + self.number

    def listen(self) -> None:
        """Take the signals over."""
        loop = asyncio.get_running_loop()
        for number in ASKING:
            loop.add_signal_handler(number, self._heard, number)

    def _heard(self, number: int) -> None:
        if self.asked.is_set():
            self._order()
            os._exit(128 + number)  # the user has waited enough; nothing of ours is left to finish
        self.number = number
        self.asked.set()
