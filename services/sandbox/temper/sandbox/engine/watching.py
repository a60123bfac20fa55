"""Changes of files as they happen: inotify on directories that were opened without following a link. Source: inotify(7)."""

import asyncio
import ctypes
import os
import struct
from types import TracebackType
from typing import Final, Self

from temper.runtime.errors import Unavailable
from temper.sandbox.engine.entries import Change, ChangeKind, EntryKind
from temper.sandbox.engine.files import DIRECTORY, Files, typed
from temper.sandbox.engine.trees import walk

_CLOSE_WRITE: Final = 0x8
_MOVED_FROM: Final = 0x40
_MOVED_TO: Final = 0x80
_CREATE: Final = 0x100
_DELETE: Final = 0x200
_OVERFLOW: Final = 0x4000
_IS_DIRECTORY: Final = 0x40000000
_ONLY_DIRECTORIES: Final = 0x01000000
_WANTED: Final = _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _ONLY_DIRECTORIES
_HEAD: Final = struct.Struct("iIII")
_MOST_DIRECTORIES: Final = 4096
_DEPTH: Final = 64
_BUFFER: Final = 1 << 16

_libc = ctypes.CDLL(None, use_errno=True)


class Watcher:
    """Watches a directory and all below it; directories that come later are taken in when they are seen."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._top = files.absolute(path)
        self._places: dict[int, str] = {}
        self._loop = asyncio.get_running_loop()
        self._ready = asyncio.Event()
        self._descriptor = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            raise Unavailable(
                f"cannot watch: {os.strerror(ctypes.get_errno())}", hint="fewer watches at once"
            )
        try:
            with typed(path), files.directory(path) as here:
                self._watch_tree(here, self._top)
        except BaseException:
            os.close(self._descriptor)
            raise

    def __enter__(self) -> Self:
        """Begin to listen."""
        self._loop.add_reader(self._descriptor, self._ready.set)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go."""
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)

    def _watch_tree(self, here: int, place: str) -> None:
        self._watch(here, place)
        for info, parent, name in walk(here, place, _DEPTH):
            if info.kind is EntryKind.DIRECTORY:
                below = os.open(name, DIRECTORY, dir_fd=parent)
                self._watch(below, info.path)
                os.close(below)

    def _watch(self, directory: int, place: str) -> None:
        if len(self._places) >= _MOST_DIRECTORIES:
            raise Unavailable(
                f"more than {_MOST_DIRECTORIES} directories to watch", hint="watch a part of them"
            )
        number = _libc.inotify_add_watch(self._descriptor, f"/proc/self/fd/{directory}".encode(), _WANTED)
        if number < 0:
            raise Unavailable(f"cannot watch {place}: {os.strerror(ctypes.get_errno())}")
        self._places[number] = place

    async def next(self, died: "asyncio.Future[None]") -> list[Change] | None:
        """The next changes, at least one; None once the sandbox has ended."""
        while True:
            waiting = self._loop.create_task(self._ready.wait())
            await asyncio.wait({waiting, died}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if died.done():
                return None
            self._ready.clear()
            if changes := self._read():
                return changes

    def _read(self) -> list[Change]:
        try:
            data = os.read(self._descriptor, _BUFFER)
        except BlockingIOError:
            return []
        changes: list[Change] = []
        while data:
            number, mask, _, length = _HEAD.unpack_from(data)
            name = data[_HEAD.size : _HEAD.size + length].rstrip(b"\0").decode(errors="replace")
            data = data[_HEAD.size + length :]
            changes += self._event(number, mask, name)
        return changes

    def _event(self, number: int, mask: int, name: str) -> list[Change]:
        if mask & _OVERFLOW:
            return [Change(ChangeKind.LOST, self._top)]
        if number not in self._places or not name:
            return []
        place = f"{self._places[number]}/{name}"
        if mask & (_DELETE | _MOVED_FROM):
            return [Change(ChangeKind.REMOVED, place)]
        if mask & _CLOSE_WRITE:
            return [Change(ChangeKind.MODIFIED, place)]
        if not mask & (_CREATE | _MOVED_TO):
            return []
        return [Change(ChangeKind.CREATED, place), *(self._arrived(place) if mask & _IS_DIRECTORY else [])]

    def _arrived(self, place: str) -> list[Change]:
        """A new directory: watch it, and tell what came into it before it was watched."""
        try:
            with self._files.directory(place) as here:
                self._watch_tree(here, place)
                return [Change(ChangeKind.CREATED, info.path) for info, _, _ in walk(here, place, _DEPTH)]
        except OSError:  # gone again
            return []
