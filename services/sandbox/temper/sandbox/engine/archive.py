"""Trees as tar streams, in and out of a sandbox. Links stay links; devices, absolute names and ".." are refused.

The stream passes through an unnamed file of the host, never through its memory. Going in, every name and type is judged
before the first one is written.
"""

import io
import os
import tarfile
from collections.abc import AsyncIterator
from pathlib import PurePosixPath
from typing import IO, Final

from temper.runtime.errors import Exhausted, Rejected
from temper.sandbox.engine.entries import EntryKind, FileInfo
from temper.sandbox.engine.files import MOST_LEVELS, SAFE, Files, typed
from temper.sandbox.engine.trees import MOST_ENTRIES, walk

CHUNK: Final = 256 << 10
"""Bytes of one piece of a stream going out."""
MOST_BYTES: Final = 16 << 30
"""Bytes of a stream coming in."""
_TYPES: Final = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE)


async def collect(file: IO[bytes], chunks: AsyncIterator[bytes]) -> None:
    """Write a stream into a file. Raises Exhausted beyond the bound."""
    size = 0
    async for chunk in chunks:
        size += len(chunk)
        if size > MOST_BYTES:
            raise Exhausted(f"the archive is over {MOST_BYTES} bytes", field="chunks")
        file.write(chunk)
    file.seek(0)


def pack(files: Files, path: str, file: IO[bytes]) -> None:
    """Write everything below a directory into `file`. Sockets, pipes and devices are left out. Raises Rejected."""
    with (
        typed(path),
        files.directory(path) as here,
        tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as out,
    ):
        room = files.capacity
        for count, (info, parent, name) in enumerate(walk(here, "", MOST_LEVELS + 1)):
            room -= info.size
            if room < 0 or info.path.count("/") > MOST_LEVELS:
                raise Rejected(
                    f"{info.path!r} is nested too deeply or full of holes", field="path", hint="take a part"
                )
            if count > MOST_ENTRIES:
                raise Rejected(f"more than {MOST_ENTRIES} entries", field="path", hint="take a part of it")
            _add(out, info, parent, name)


def _add(out: tarfile.TarFile, info: FileInfo, parent: int, name: str) -> None:
    header = tarfile.TarInfo(info.path.lstrip("/"))
    header.mode, header.mtime = info.mode, info.modified_at
    if info.kind is EntryKind.DIRECTORY:
        header.type = tarfile.DIRTYPE
        out.addfile(header)
    elif info.kind is EntryKind.LINK:
        header.type, header.linkname = tarfile.SYMTYPE, info.target
        out.addfile(header)
    elif info.kind is EntryKind.FILE:
        with os.fdopen(os.open(name, os.O_RDONLY | SAFE, dir_fd=parent), "rb") as source:
            header.size = os.fstat(source.fileno()).st_size
            out.addfile(header, _Exactly(source, header.size))


class _Exactly(io.RawIOBase):
    """A file read to the size in its header, whatever the agent does to it meanwhile: cut off, or filled with zeros."""

    def __init__(self, source: IO[bytes], size: int) -> None:
        self._source = source
        self._left = size

    def read(self, size: int = -1) -> bytes:
        wanted = self._left if size < 0 else min(size, self._left)
        data = self._source.read(wanted)
        self._left -= wanted
        return data + bytes(wanted - len(data))


def unpack(files: Files, path: str, file: IO[bytes]) -> int:
    """Write the entries of a tar file below a directory; returns how many. Raises Rejected, Exhausted."""
    try:
        with tarfile.open(fileobj=file, mode="r:*") as archive:
            members = _judge(archive)
            files.make_directory(path)
            for member in members:
                _write(files, path, archive, member)
            return len(members)
    except (tarfile.TarError, EOFError, UnicodeError) as error:
        raise Rejected(f"not a tar archive: {error}", field="chunks") from error


def _judge(archive: tarfile.TarFile) -> list[tarfile.TarInfo]:
    members: list[tarfile.TarInfo] = []
    links: set[PurePosixPath] = set()
    for member in archive:
        place = _place(member.name)
        if member.type not in _TYPES:
            raise Rejected(f"{member.name!r} is no file, directory or link", field="chunks")
        if member.type == tarfile.LNKTYPE:
            _place(member.linkname)
        if any(parent in links for parent in place.parents):
            raise Rejected(
                f"{member.name!r} goes through a link", field="chunks", hint="links are not followed"
            )
        if member.type == tarfile.SYMTYPE:
            links.add(place)
        if place.parts:
            members.append(member)
        if len(members) > MOST_ENTRIES:
            raise Rejected(f"more than {MOST_ENTRIES} entries", field="chunks")
    return members


def _place(name: str) -> PurePosixPath:
    place = PurePosixPath(name)
    if place.is_absolute() or ".." in place.parts or "\0" in name:
        raise Rejected(f"{name!r} leaves the tree", field="chunks", hint="relative names without '..'")
    return place


def _write(files: Files, path: str, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
    target = f"{path or '/work'}/{member.name}"
    if member.isdir():
        files.make_directory(target, member.mode)
    elif member.issym():
        files.link(target, member.linkname)
    elif member.islnk():
        files.hard_link(target, f"{path or '/work'}/{member.linkname}")
    else:
        source = archive.extractfile(member)
        assert source is not None
        files.put_from(target, source, member.mode, member.mtime)
