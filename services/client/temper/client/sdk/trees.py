"""A directory as a tar archive: links stay links, and nothing outside of it is read."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path


def packed(directory: Path) -> bytes:
    """Everything below `directory`, by names relative to it, in a fixed order."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for path in sorted(directory.rglob("*")):
            archive.add(path, str(path.relative_to(directory)), recursive=False)
    return buffer.getvalue()
