"""Snapshots of files: copies on the host's disk, out of reach of every sandbox, within a bound.

They belong to one service process and go with it; their directory is in its record, so a successor removes them.
"""

import os
import shutil
import stat
from pathlib import Path
from typing import Final

from temper.runtime.errors import Exhausted, Rejected
from temper.sandbox.engine.files import DIRECTORY, MOST_LEVELS, SAFE, Files, typed

MOST_BYTES: Final = 8 << 30
"""Bytes of all snapshots together."""
MOST: Final = 4096
"""Snapshots at once."""
_PIECE: Final = 1 << 20
_OVERHEAD: Final = 64 << 20
"""What directories and empty files are counted as, on top of what a tree can hold."""
_READABLE: Final = os.O_RDONLY | SAFE


class Snapshots:
    """All snapshots of one backend. `home` is a directory of this process alone, made at the first one."""

    def __init__(self, home: Path, most_bytes: int = MOST_BYTES) -> None:
        self._home = home
        self._most_bytes = most_bytes
        self._sizes: dict[str, int] = {}
        self._taken = 0

    def __len__(self) -> int:
        return len(self._sizes)

    def require(self, snapshot: str) -> Path:
        """Where it lies. Raises Rejected for one that is not known."""
        if snapshot not in self._sizes:
            raise Rejected(
                f"no snapshot {snapshot!r} here", field="snapshot", hint="it was dropped, or never taken"
            )
        return self._home / snapshot

    def take(self, files: Files) -> str:
        """Copy the trees; returns an id. Raises Exhausted when there is no room left for it."""
        if len(self._sizes) >= MOST:
            raise Exhausted(f"{MOST} snapshots are kept", hint="forget some")
        self._taken += 1
        name = f"snap-{self._taken}"
        place = self._home / name
        left = self._most_bytes - sum(self._sizes.values())
        room = _Room(min(left, files.capacity + _OVERHEAD))
        try:
            with typed(name):
                for index, root in enumerate(files.roots()):
                    (place / str(index)).mkdir(parents=True)
                    _copy_into(root, place / str(index), None, room)
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise
        self._sizes[name] = room.used
        return name

    def put_back(self, snapshot: str, files: Files) -> None:
        """Copy a snapshot into the empty trees of a fresh sandbox. Raises Rejected, Exhausted."""
        place = self.require(snapshot)
        with typed(snapshot):
            for index, root in enumerate(files.roots()):
                source = os.open(place / str(index), DIRECTORY)
                try:
                    _copy(source, root, files.owner, _Room(self._sizes[snapshot] + _OVERHEAD))
                finally:
                    os.close(source)

    def forget(self, snapshot: str) -> None:
        """Drop one. Idempotent."""
        if self._sizes.pop(snapshot, None) is not None:
            shutil.rmtree(self._home / snapshot, ignore_errors=True)

    def clear(self) -> None:
        """Drop all."""
        self._sizes.clear()
        shutil.rmtree(self._home, ignore_errors=True)


class _Room:
    """Bytes that may still be copied, and how deep this is."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.used = 0
        self.level = 0

    def take(self, size: int) -> None:
        self.used += size
        if self.used > self._limit:
            raise Exhausted(f"no room for a snapshot: {self._limit} bytes are left", hint="forget some")


def _copy_into(source: int, target: Path, owner: int | None, room: _Room) -> None:
    descriptor = os.open(target, DIRECTORY)
    try:
        _copy(source, descriptor, owner, room)
    finally:
        os.close(descriptor)


def _copy(source: int, target: int, owner: int | None, room: _Room) -> None:
    """Copy a tree between open directories: files, directories, links. One file by two names becomes two."""
    here = os.open(".", DIRECTORY, dir_fd=source)
    try:
        with os.scandir(here) as found:
            for entry in found:
                info = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(info.st_mode):
                    _copy_file(here, target, entry.name, info, owner, room)
                elif stat.S_ISDIR(info.st_mode):
                    _copy_directory(here, target, entry.name, info, owner, room)
                elif stat.S_ISLNK(info.st_mode):
                    os.symlink(os.readlink(entry.name, dir_fd=here), entry.name, dir_fd=target)
                    if owner is not None:
                        os.chown(entry.name, owner, owner, dir_fd=target, follow_symlinks=False)
    finally:
        os.close(here)


def _copy_directory(
    here: int, target: int, name: str, info: os.stat_result, owner: int | None, room: _Room
) -> None:
    room.take(info.st_blksize)
    room.level += 1
    if room.level > MOST_LEVELS:
        raise Rejected(f"more than {MOST_LEVELS} directories within each other", field="snapshot")
    os.mkdir(name, 0o700, dir_fd=target)
    inner, below = os.open(name, DIRECTORY, dir_fd=here), os.open(name, DIRECTORY, dir_fd=target)
    try:
        _copy(inner, below, owner, room)
        if owner is not None:
            os.fchown(below, owner, owner)
        os.fchmod(below, info.st_mode & 0o777)
        os.utime(below, ns=(info.st_mtime_ns, info.st_mtime_ns))
    finally:
        room.level -= 1
        os.close(inner)
        os.close(below)


def _copy_file(
    here: int, target: int, name: str, info: os.stat_result, owner: int | None, room: _Room
) -> None:
    room.take(max(info.st_size, 1))
    source = os.open(name, _READABLE, dir_fd=here)
    copy = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | SAFE, 0o600, dir_fd=target)
    try:
        if not stat.S_ISREG(os.fstat(source).st_mode):
            return
        left = info.st_size
        while left > 0 and (sent := os.sendfile(copy, source, None, min(left, _PIECE))):
            left -= sent
        if owner is not None:
            os.fchown(copy, owner, owner)
        os.fchmod(copy, info.st_mode & 0o777)
        os.utime(copy, ns=(info.st_mtime_ns, info.st_mtime_ns))
    finally:
        os.close(source)
        os.close(copy)
