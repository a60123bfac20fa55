"""One platform per data directory: an advisory lock that the kernel releases however its holder ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from temper.runtime.errors import Conflict


class DirectoryLock:
    """Held from `acquire` to `release`; the file names the holder for people. A dead holder's lock is free."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock; Conflict names the process that has it."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise self._taken() from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        """Give it back; the file stays, because removing it would race with the next holder."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _taken(self) -> Conflict:
        directory = self._path.parent
        who = f"process {holder(self._path) or 'unknown'}"
        hint = f"stop it with: temper down --data-dir {directory}; or choose another --data-dir"
        return Conflict(f"{directory} is in use by {who}", field="data_dir", hint=hint)


def holder(path: Path) -> int | None:
    """Process that holds the lock at `path`; None when it is free."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        text = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
        return int(text) if text.isdigit() else None
    else:
        return None
    finally:
        os.close(descriptor)
