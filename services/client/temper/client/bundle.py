"""An environment's directory as one deterministic tar: the same files give the same bytes on every machine."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from temper.runtime.errors import Rejected

MANIFEST = "env.toml"
_SKIPPED = {"__pycache__", ".git", ".venv", ".pytest_cache"}
_LARGEST = 64 << 20  # bytes of all files; larger data belongs into object storage


def pack(directory: Path) -> bytes:
    """Tar of the regular files below `directory`, sorted, without owners and times. Rejected names what is wrong."""
    if not (directory / MANIFEST).is_file():
        raise Rejected(
            f"{directory} has no {MANIFEST}", field="directory", hint="an environment starts with it"
        )
    files = _files(directory)
    size = sum(path.stat().st_size for path in files)
    if size > _LARGEST:
        raise Rejected(f"{directory} holds {size >> 20} MB; at most {_LARGEST >> 20} MB", field="directory")
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in files:
            archive.addfile(_entry(directory, path), io.BytesIO(path.read_bytes()))
    return target.getvalue()


def _files(directory: Path) -> list[Path]:
    found: list[Path] = []
    for path in sorted(directory.rglob("*")):
        relative = path.relative_to(directory)
        if _SKIPPED.intersection(relative.parts):
            continue
        if path.is_symlink():
            hint = "copy the file: links mean other things elsewhere"
            raise Rejected(f"{relative} is a link", field="directory", hint=hint)
        if path.is_file():
            found.append(path)
    return found


def _entry(directory: Path, path: Path) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(path.relative_to(directory).as_posix())
    entry.size = path.stat().st_size
    entry.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
    return entry
