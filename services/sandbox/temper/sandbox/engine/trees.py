"""Looking at and changing the files of a sandbox: list, stat, remove, patch, search. Links are never followed."""

import os
import stat as modes
from collections.abc import Iterator, Sequence
from typing import Final

from temper.runtime.errors import Rejected, Unavailable
from temper.sandbox.engine.base import Command, CommandResult, Edit, FileInfo, Limits, Match, Outcome
from temper.sandbox.engine.entries import EntryKind
from temper.sandbox.engine.files import DIRECTORY, MOST_LEVELS, Files, typed

MOST_ENTRIES: Final = 100_000
"""Entries of one listing or tree."""
MOST_PATCHED: Final = 64 << 20
"""Bytes of a file that can be patched."""
SEARCH_LIMITS: Final = Limits(wall_s=30.0, output_bytes=4 << 20)
"""Of the program that searches."""
_LINE: Final = 1000
_WORK: Final = "/work"  # the directory in which programs start, whatever the host calls it
_KINDS: Final = {
    modes.S_IFREG: EntryKind.FILE,
    modes.S_IFDIR: EntryKind.DIRECTORY,
    modes.S_IFLNK: EntryKind.LINK,
}


def stat(files: Files, path: str) -> FileInfo:
    """One entry. Raises Rejected."""
    place = files.absolute(path)
    if files.is_root(path):
        with typed(path), files.directory(path) as here:
            return _info(place, os.fstat(here))
    with typed(path), files.parent(path, create=False) as (here, name):
        return describe(place, here, name)


def describe(place: str, here: int, name: str) -> FileInfo:
    """The entry `name` of an open directory, known as `place`."""
    found = os.stat(name, dir_fd=here, follow_symlinks=False)
    target = os.readlink(name, dir_fd=here) if modes.S_ISLNK(found.st_mode) else ""
    return _info(place, found, target)


def _info(place: str, found: os.stat_result, target: str = "") -> FileInfo:
    kind = _KINDS.get(modes.S_IFMT(found.st_mode), EntryKind.OTHER)
    size = found.st_size if kind is EntryKind.FILE else 0
    return FileInfo(place, kind, size, found.st_mode & 0o777, found.st_mtime, target)


def entries(files: Files, path: str, depth: int) -> list[FileInfo]:
    """Entries below a directory in order of their paths. Raises Rejected."""
    if not 1 <= depth <= MOST_LEVELS:
        raise Rejected(f"must be within 1 and {MOST_LEVELS}, got {depth}", field="depth")
    found: list[FileInfo] = []
    with typed(path), files.directory(path) as here:
        for info, _, _ in walk(here, files.absolute(path), depth):
            found.append(info)
            if len(found) > MOST_ENTRIES:
                raise Rejected(f"more than {MOST_ENTRIES} entries", field="path", hint="list a part of it")
    return found


def walk(here: int, place: str, depth: int) -> Iterator[tuple[FileInfo, int, str]]:
    """Every entry below an open directory with its parent's descriptor (valid until the next step) and name."""
    for name in sorted(os.listdir(here)):
        inner = f"{place}/{name}"
        try:
            info = describe(inner, here, name)
        except FileNotFoundError:  # the agent removed it meanwhile
            continue
        yield info, here, name
        if info.kind is EntryKind.DIRECTORY and depth > 1:
            try:
                below = os.open(name, DIRECTORY, dir_fd=here)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError:  # swapped for a link, or not ours to read
                continue
            try:
                yield from walk(below, inner, depth - 1)
            finally:
                os.close(below)


def remove(files: Files, path: str, *, recursive: bool) -> None:
    """Remove an entry, with `recursive` a tree. Raises Rejected."""
    with typed(path), files.parent(path, create=False) as (here, name):
        if describe(path, here, name).kind is not EntryKind.DIRECTORY:
            os.unlink(name, dir_fd=here)
            return
        if recursive:
            _empty(here, name, 0)
        try:
            os.rmdir(name, dir_fd=here)
        except OSError as error:
            text = (error.strerror or "").lower()
            raise Rejected(f"{path!r}: {text}", field="path", hint="remove it recursively") from error


def _empty(here: int, name: str, level: int) -> None:
    if level > MOST_LEVELS:
        raise Rejected(
            f"more than {MOST_LEVELS} directories within each other",
            field="path",
            hint="remove it by a program",
        )
    below = os.open(name, DIRECTORY, dir_fd=here)
    try:
        for each in os.listdir(below):  # noqa: PTH208 - a descriptor, not a path
            if describe(each, below, each).kind is EntryKind.DIRECTORY:
                _empty(below, each, level + 1)
                os.rmdir(each, dir_fd=below)
            else:
                os.unlink(each, dir_fd=below)
    finally:
        os.close(below)


def patch(files: Files, path: str, edits: Sequence[Edit]) -> None:
    """Replace texts, all or none. Raises Rejected."""
    content, more = files.get(path, MOST_PATCHED)
    if more:
        raise Rejected(f"{path!r} is over {MOST_PATCHED} bytes", field="path", hint="edit it with a program")
    for index, edit in enumerate(edits):
        old, new = edit.old.encode(), edit.new.encode()
        found = content.count(old) if old else 0
        if found == 0 or (found > 1 and not edit.everywhere):
            reason = "is not there" if found == 0 else f"is there {found} times"
            raise Rejected(
                f"the text of edit {index} {reason} in {path!r}",
                field="edits",
                hint="give more of its surroundings",
            )
        content = content.replace(old, new)
    files.put(path, content, stat(files, path).mode)


def grep(pattern: str, place: str, limit: int) -> Command:
    """The search as a program inside the sandbox, where a costly pattern costs the agent and not the host."""
    if not pattern or "\n" in pattern or "\0" in pattern:
        raise Rejected("must be one line and not empty", field="pattern")
    most = ("-m", str(max(1, limit)))
    inner = "." + place.removeprefix(_WORK) if (place + "/").startswith(_WORK + "/") else place
    argv = ("grep", "-rnIHE", "--null", *most, "-e", pattern, "--", inner)
    return Command(argv, env={"LC_ALL": "C"})  # a byte that is no UTF-8 does not make a file binary


def matches(result: CommandResult, limit: int) -> list[Match]:
    """What the program found. Raises Rejected for a bad pattern, Unavailable if it could not search."""
    if result.error is not None or result.exit_code == 127:
        raise Unavailable("this sandbox has no grep to search with")
    if result.exit_code not in {0, 1} and not result.stdout:
        if result.outcome is not Outcome.OK:
            raise Rejected(
                f"the search ended: {result.outcome}", field="pattern", hint="search a smaller tree"
            )
        text = result.stderr.decode(errors="replace").strip()[:200]
        raise Rejected(f"the search failed: {text}", field="pattern")
    found: list[Match] = []
    for line in result.stdout.split(b"\n"):
        path, _, rest = line.partition(b"\0")
        number, _, text = rest.partition(b":")
        if number.isdigit():
            place = path.decode(errors="replace")
            place = _WORK + place[1:] if place.startswith(".") else place
            found.append(Match(place, int(number), text.decode(errors="replace")[:_LINE]))
    return found[:limit]
