"""Where progress is drawn: bars on a terminal, lines elsewhere; always on standard error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from rich.console import Console, RenderableType
from rich.live import Live
from rich.spinner import Spinner

from temper.client.live.plain import PlainLines
from temper.client.live.screen import draw
from temper.client.live.view import JobView
from temper.client.sdk.types import Update

_FRAME_S = 0.25


class Display:
    """Takes updates and remarks, shows them. `bars` None: bars on a terminal only."""

    def __init__(self, *, bars: bool | None = None) -> None:
        self.view = JobView()
        self.console = Console(stderr=True)
        self._bars = self.console.is_terminal if bars is None else bars
        self._lines = PlainLines(self.view, self._print)
        self._live: Live | None = None
        self._remark = Spinner("dots", "")

    def say(self, message: str) -> None:
        """A remark of the platform or of ourselves."""
        if self._live is None:
            self._print(message)
        elif self.view.job.id:
            self.view.say(message)
        else:
            self._remark.update(text=message)

    def apply(self, update: Update) -> None:
        """One message of the watch."""
        self.view.apply(update)
        if self._live is None:
            self._lines.apply(update)

    @asynccontextmanager
    async def shown(self) -> AsyncIterator[None]:
        """Draw frames while the body runs."""
        if not self._bars:
            yield
            return
        with Live(console=self.console, auto_refresh=False, transient=False) as self._live:
            frames = asyncio.create_task(self._frames(self._live))
            try:
                yield
            finally:
                frames.cancel()
                with suppress(asyncio.CancelledError):
                    await frames
                self._live.update(draw(self.view) if self.view.job.id else "", refresh=True)
        self._live = None

    async def _frames(self, live: Live) -> None:
        while True:
            live.update(self._picture(), refresh=True)
            await asyncio.sleep(_FRAME_S)

    def _picture(self) -> RenderableType:
        return draw(self.view) if self.view.job.id else self._remark

    def _print(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)
