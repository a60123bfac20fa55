"""Files of an environment asset: read, packed and named by their content.

Equal digest means equal tasks and equal verifier, on every machine: file times, owners and the order of a directory do
not count; names, exec bits, link targets and bytes do. Author notes live outside the asset.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from temper.runtime.errors import Rejected

MOST_BYTES = 64 << 20  # of one bundle: larger data belongs into object storage of its own
MOST_FILES = 10_000
_IGNORED = {"__pycache__", ".git", ".DS_Store"}


@dataclass(frozen=True, slots=True)
class Entry:
    """One file or link of an asset. Example: `Entry("env.py", False, content=b"…")`."""

    path: str
    """Relative, with `/`."""
    executable: bool
    """Whether its owner may execute it; no other permission counts."""
    content: bytes = b""
    """Bytes of a file."""
    target: str | None = None
    """Target of a symbolic link; None for a file."""

    @property
    def mode(self) -> int:
        """Permission bits in their normal form."""
        return 0o755 if self.executable else 0o644

    def identity(self) -> bytes:
        """`type NUL path NUL mode NUL (sha256 of the bytes | target)`."""
        what = hashlib.sha256(self.content).hexdigest() if self.target is None else self.target
        kind = "file" if self.target is None else "link"
        return f"{kind}\0{self.path}\0{self.mode:o}\0{what}\n".encode()


Tree = tuple[Entry, ...]
"""Entries of an asset, sorted by path."""


def digest(tree: Tree, params_json: str) -> str:
    """Lower-case hex SHA-256 of an asset and the parameters it runs with."""
    whole = hashlib.sha256()
    for entry in tree:
        whole.update(entry.identity())
    whole.update(b"params\0" + params_json.encode())
    return whole.hexdigest()


def read_directory(root: Path) -> Tree:
    """The asset in `root`. Rejected if it is no directory, too large, or holds something that is no file or link."""
    if not root.is_dir():
        raise Rejected(f"{root} is not a directory", field="path")
    return _checked(_entry_on_disk(root, path) for path in sorted(_walk(root)))


def read_tar(data: bytes) -> Tree:
    """The asset in an uncompressed tar. Rejected if it is damaged or reaches outside itself."""
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            return _checked(_entry_in_tar(archive, member) for member in archive if not member.isdir())
    except tarfile.TarError as error:
        raise Rejected(f"the bundle is not a tar: {error}", field="bundle") from None


def write_tar(tree: Tree) -> bytes:
    """The one tar of an asset: equal trees give equal bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for entry in tree:
            archive.addfile(_member(entry), io.BytesIO(entry.content))
    return buffer.getvalue()


def find(tree: Tree, path: str) -> bytes:
    """Bytes of one file. Rejected if the asset has none of that name."""
    for entry in tree:
        if entry.path == path and entry.target is None:
            return entry.content
    raise Rejected(f"the asset has no file {path!r}", field="bundle")


def _walk(root: Path) -> Iterator[Path]:
    for path in root.iterdir():
        if path.name in _IGNORED or path.suffix == ".pyc":
            continue
        if path.is_dir() and not path.is_symlink():
            yield from _walk(path)
        else:
            yield path


def _entry_on_disk(root: Path, path: Path) -> Entry:
    name = path.relative_to(root).as_posix()
    if path.is_symlink():
        return Entry(name, executable=False, target=path.readlink().as_posix())
    if not path.is_file():
        raise Rejected(f"{name} is neither a file nor a link", field="bundle")
    return Entry(name, bool(path.stat().st_mode & 0o100), path.read_bytes())


def _entry_in_tar(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Entry:
    name = member.name.removeprefix("./")
    if member.issym():
        return Entry(name, executable=False, target=member.linkname)
    if member.size > MOST_BYTES:  # before a byte of it is read
        raise Rejected(f"{name} is over {MOST_BYTES >> 20} MiB", field="bundle")
    stream = archive.extractfile(member) if member.isreg() else None
    if stream is None:
        raise Rejected(f"{name} is neither a file nor a link", field="bundle")
    return Entry(name, bool(member.mode & 0o100), stream.read())


def _member(entry: Entry) -> tarfile.TarInfo:
    """Header with everything normal that does not count: time 0, owner 0."""
    member = tarfile.TarInfo(entry.path)
    member.mode = entry.mode
    member.size = len(entry.content)
    if entry.target is not None:
        member.type, member.linkname = tarfile.SYMTYPE, entry.target
    return member


def _checked(entries: Iterable[Entry]) -> Tree:
    kept: dict[str, Entry] = {}
    size = 0
    for entry in entries:
        _inside(entry.path)
        if entry.target is not None:
            _inside(str(PurePosixPath(entry.path).parent / entry.target))
        if entry.path in kept:
            raise Rejected(f"{entry.path} is there twice", field="bundle")
        kept[entry.path] = entry
        size += len(entry.content)
        if size > MOST_BYTES or len(kept) > MOST_FILES:
            raise Rejected(f"more than {MOST_BYTES >> 20} MiB or {MOST_FILES} files", field="bundle")
    if not kept:
        raise Rejected("the asset is empty", field="bundle")
    return tuple(kept[path] for path in sorted(kept))


def _inside(path: str) -> None:
    """Refuse a path that leaves the asset: absolute, or with more `..` than parents."""
    depth = 0
    for part in PurePosixPath(path).parts:
        depth += {"..": -1, ".": 0}.get(part, 1)
        if depth < 0 or part == "/":
            raise Rejected(f"{path} leaves the asset", field="bundle")
