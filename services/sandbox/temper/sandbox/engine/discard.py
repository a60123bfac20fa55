"""Removing trees that an agent has built: of any depth, with names of any length of path, without recursion."""

# ruff: noqa: PTH208 - pathlib lists no open directory
import contextlib
import errno
import os
from pathlib import Path
from typing import Final

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def discard(directory: Path) -> None:
    """Remove a tree nobody works in any more; what the kernel does not let go of stays. Links are not followed.

    Directories inside others are first moved up, so neither the stack nor the length of a path bounds the depth.
    """
    with contextlib.suppress(OSError):
        top = os.open(directory, _DIRECTORY)
        try:
            _flatten(top)
        finally:
            os.close(top)
        directory.rmdir()


def _flatten(top: int) -> None:
    moved = 0
    stuck: set[str] = set()
    while names := [name for name in os.listdir(top) if name not in stuck]:
        for name in names:
            try:
                moved = _empty(top, name, moved)
            except OSError:
                stuck.add(name)


def _empty(top: int, name: str, moved: int) -> int:
    """Remove one entry of `top`; the directories in it become entries of `top`. Returns how many were moved so far."""
    if _unlinked(top, name):
        return moved
    os.chmod(name, 0o700, dir_fd=top)
    here = os.open(name, _DIRECTORY, dir_fd=top)
    try:
        for inner in os.listdir(here):
            if not _unlinked(here, inner):
                os.chmod(inner, 0o700, dir_fd=here)  # whoever moves a directory must be able to write it
                moved = _moved_up(top, here, inner, moved)
    finally:
        os.close(here)
    os.rmdir(name, dir_fd=top)
    return moved


def _moved_up(top: int, here: int, inner: str, moved: int) -> int:
    """Under a name that is free: the agent may have thought of ours."""
    while True:
        moved += 1
        try:
            os.rename(inner, f".moved-{moved}", src_dir_fd=here, dst_dir_fd=top)
        except (FileExistsError, NotADirectoryError):
            continue
        except OSError as error:
            if error.errno == errno.ENOTEMPTY:
                continue
            raise
        return moved


def _unlinked(directory: int, name: str) -> bool:
    """Whether it was no directory; then it is gone."""
    try:
        os.unlink(name, dir_fd=directory)
    except (IsADirectoryError, PermissionError):
        return False
    return True
