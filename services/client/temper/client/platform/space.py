"""A full disk: told at once, and what it broke is mended when there is room again."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

FULL_BYTES, ROOM_BYTES = 16 << 20, 64 << 20  # apart, so that a disk at the edge is not told again and again
_LOOK_S = 2.0


def free_bytes(directory: Path) -> int:
    """Room on the disk of a directory."""
    return shutil.disk_usage(directory).free


class Space:
    """Watches the disk of a data directory. `mend` is called once there is room after there was none."""

    def __init__(
        self,
        directory: Path,
        *,
        say: Callable[[str], None],
        mend: Callable[[], None],
        free: Callable[[Path], int] = free_bytes,
    ) -> None:
        self._directory = directory
        self._say = say
        self._mend = mend
        self._free = free
        self._full = False

    async def watch(self) -> None:
        """Look for ever."""
        while True:
            with suppress(OSError):  # a directory that somebody removed is the services' to complain about
                self.look()
            await asyncio.sleep(_LOOK_S)

    def look(self) -> None:
        """Compare with what was seen last."""
        free = self._free(self._directory)
        if not self._full and free < FULL_BYTES:
            self._full = True
            self._say(
                f"the disk is full: {free >> 20} MB free in {self._directory}; everything waits for room"
            )
        elif self._full and free >= ROOM_BYTES:
            self._full = False
            self._say(f"there is room again: {free >> 20} MB free")
            self._mend()
