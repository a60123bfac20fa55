"""Files of a sandbox, reached from outside through a directory descriptor.

The agent may swap any part of a path for a link at any moment, so no path is ever resolved by name as a whole: each
component is opened on the descriptor of the one before it, links refused.
"""

import errno
import os
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import IO, Final

from temper.runtime.errors import Exhausted, Rejected, Unavailable

DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
SAFE: Final = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a named pipe must not block the host
_PIECE: Final = 1 << 20
_UNSIZED: Final = 16 << 30
MOST_LEVELS: Final = 128
"""Directories within directories, where a tree is walked as a whole."""


class Files:
    """The writable trees of one sandbox."""

    def __init__(
        self, roots: Mapping[str, int], owner: int | None, *, sized: bool, beside: Sequence[int] = ()
    ) -> None:
        """`roots` maps "/work", "/tmp" to open directories, which this object closes; `owner` is the uid of files.

        `sized` says that the trees are the sandbox's own, so that a full one is the agent's doing. `beside` are open
        directories of its own that no path leads to here, such as shared memory: they can be full, too.
        """
        self._roots = dict(roots)
        self.owner = owner
        """Uid of files; None where the host cannot or need not give them away."""
        self._sized = sized
        self._beside = tuple(beside)

    def put(self, path: str, content: bytes, mode: int) -> None:
        """Write a file with its directories. Raises Rejected, Exhausted."""
        with typed(path), self.parent(path, create=True) as (parent, name):
            descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | SAFE, mode & 0o777, dir_fd=parent)
            with os.fdopen(descriptor, "wb") as file:
                _require_regular(descriptor, path)
                os.ftruncate(descriptor, 0)
                os.fchmod(descriptor, mode & 0o777)
                self._own(descriptor)
                file.write(content)

    def get(self, path: str, max_bytes: int) -> tuple[bytes, bool]:
        """The first bytes of a regular file, and whether there are more. Raises Rejected."""
        with typed(path), self.parent(path, create=False) as (parent, name):
            descriptor = os.open(name, os.O_RDONLY | SAFE, dir_fd=parent)
            with os.fdopen(descriptor, "rb") as file:
                _require_regular(descriptor, path)
                content = file.read(max_bytes + 1)
        return content[:max_bytes], len(content) > max_bytes

    def put_from(self, path: str, source: IO[bytes], mode: int, modified_at: float) -> None:
        """As `put`, from a file of the host. Raises Rejected, Exhausted."""
        with typed(path), self.parent(path, create=True) as (parent, name):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | SAFE
            descriptor = os.open(name, flags, mode & 0o777, dir_fd=parent)
            with os.fdopen(descriptor, "wb") as file:
                _require_regular(descriptor, path)
                os.fchmod(descriptor, mode & 0o777)
                self._own(descriptor)
                shutil.copyfileobj(source, file, _PIECE)
                file.flush()
                os.utime(descriptor, (modified_at, modified_at))

    def make_directory(self, path: str, mode: int | None = None) -> None:
        """Make a directory with its parents; one that is there is fine. Raises Rejected, Exhausted."""
        if self.is_root(path):
            return
        with typed(path), self.parent(path, create=True) as (parent, name):
            below = self._descend(parent, name, create=True)
            if mode is not None:
                os.fchmod(below, mode & 0o777)
            os.close(below)

    def link(self, path: str, target: str) -> None:
        """Make a symbolic link, wherever it may point: only the sandbox ever follows it. Raises Rejected."""
        with typed(path), self.parent(path, create=True) as (parent, name):
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=parent)
            os.symlink(target, name, dir_fd=parent)
            if self.owner is not None:
                os.chown(name, self.owner, self.owner, dir_fd=parent, follow_symlinks=False)

    def hard_link(self, path: str, existing: str) -> None:
        """Give a file of the same trees a second name. Raises Rejected."""
        with (
            typed(path),
            self.parent(existing, create=False) as (source, old),
            self.parent(path, create=True) as (parent, name),
        ):
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=parent)
            os.link(old, name, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)

    @contextmanager
    def directory(self, path: str) -> Iterator[int]:
        """An open directory, the top of a tree included. Raises Rejected, OSError."""
        if self.is_root(path):
            here = os.open(".", DIRECTORY, dir_fd=self._root(path))
        else:
            with self.parent(path, create=False) as (parent, name):
                here = os.open(name, DIRECTORY, dir_fd=parent)
        try:
            yield here
        finally:
            os.close(here)

    def is_root(self, path: str) -> bool:
        """Whether it names the top of a writable tree."""
        parts = _parts(path)
        return not parts if not path.startswith("/") else len(parts) == 1 and "/" + parts[0] in self._roots

    def _root(self, path: str) -> int:
        return self._roots["/" + _parts(path)[0] if path.startswith("/") else "/work"]

    def absolute(self, path: str) -> str:
        """As the sandbox names it. Raises Rejected outside the writable trees."""
        if not self.is_root(path):
            self._locate(path)
        inner = "/" + "/".join(_parts(path))
        return inner if path.startswith("/") else ("/work" + inner).rstrip("/")

    def roots(self) -> list[int]:
        """The open trees, in their fixed order."""
        return list(self._roots.values())

    @property
    def capacity(self) -> int:
        """Bytes that the trees can hold; a file with holes may claim to be larger than that."""
        if not self._sized:
            return _UNSIZED
        found = [os.fstatvfs(root) for root in self._roots.values()]
        return sum(each.f_blocks * each.f_frsize for each in found)

    @property
    def full(self) -> bool:
        """Whether one of the trees has no block or no inode left."""
        places = (*self._roots.values(), *self._beside) if self._sized else ()
        states = [os.fstatvfs(place) for place in places]
        return any(not state.f_bavail or (state.f_files and not state.f_favail) for state in states)

    def close(self) -> None:
        """Let go of the trees."""
        for place in (*self._roots.values(), *self._beside):
            os.close(place)
        self._roots.clear()
        self._beside = ()

    @contextmanager
    def parent(self, path: str, *, create: bool) -> Iterator[tuple[int, str]]:
        """The open directory that holds an entry, and the entry's name. Raises Rejected, OSError."""
        root, parts = self._locate(path)
        with ExitStack() as stack:
            here = os.open(".", DIRECTORY, dir_fd=root)
            stack.callback(os.close, here)
            for part in parts[:-1]:
                here = self._descend(here, part, create=create)
                stack.callback(os.close, here)
            yield here, parts[-1]

    def _descend(self, here: int, part: str, *, create: bool) -> int:
        try:
            return os.open(part, DIRECTORY, dir_fd=here)
        except FileNotFoundError:
            if not create:
                raise
        os.mkdir(part, 0o755, dir_fd=here)
        below = os.open(part, DIRECTORY, dir_fd=here)
        self._own(below)
        return below

    def _own(self, descriptor: int) -> None:
        if self.owner is not None:
            os.fchown(descriptor, self.owner, self.owner)

    def _locate(self, path: str) -> tuple[int, list[str]]:
        parts = _parts(path)
        if ".." in parts or "\0" in path:
            raise Rejected(f"{path!r} leaves the sandbox", field="path", hint="name it without '..'")
        if path.startswith("/"):
            root = self._roots.get("/" + parts[0]) if parts else None
            parts = parts[1:]
        else:
            root = self._roots.get("/work")
        if root is None or not parts:
            allowed = ", ".join(sorted(self._roots))
            raise Rejected(f"{path!r} is not a file below a writable directory", field="path", hint=allowed)
        return root, parts


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in {"", "."}]


def _require_regular(descriptor: int, path: str) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise Rejected(
            f"{path!r} is not a regular file", field="path", hint="only files can be moved in or out"
        )


@contextmanager
def typed(path: str) -> Iterator[None]:
    """Turn what the kernel says about a path into the platform's errors."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise Exhausted(f"the sandbox's disk is full writing {path!r}", field="path") from error
        if error.errno in {errno.ELOOP, errno.ENOTDIR, errno.EMLINK}:
            raise Rejected(
                f"{path!r} goes through a link or a file",
                field="path",
                hint="links are not followed, and only a directory has entries",
            ) from error
        if error.errno in {errno.ENOENT, errno.EISDIR, errno.ENXIO, errno.ENAMETOOLONG, errno.EACCES}:
            text = (error.strerror or "").lower()
            raise Rejected(f"{path!r}: {text}", field="path") from error
        raise Unavailable(f"the host could not reach {path!r}: {error.strerror}", field="path") from error
