"""What crosses the seam with files: entries, matches, edits, changes."""

from dataclasses import dataclass
from enum import StrEnum


class EntryKind(StrEnum):
    """What an entry is."""

    FILE = "file"
    DIRECTORY = "directory"
    LINK = "link"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class FileInfo:
    """An entry of the file system. Example: `FileInfo("/work/a", EntryKind.FILE, 12, 0o644, 1.7e9)`."""

    path: str
    """Absolute, inside the sandbox."""
    kind: EntryKind
    """What it is; links are never followed."""
    size: int
    """Bytes of a file."""
    mode: int
    """Permission bits."""
    modified_at: float
    """Unix seconds."""
    target: str = ""
    """Where a link points, as written."""


@dataclass(frozen=True, slots=True)
class Edit:
    """A replacement of text. Example: `Edit("retrun", "return")`."""

    old: str
    """Text to find, exactly."""
    new: str
    """Text to put in its place."""
    everywhere: bool = False
    """Replace each occurrence; otherwise there must be exactly one."""


@dataclass(frozen=True, slots=True)
class Match:
    """A line that a search found. Example: `Match("/work/a.py", 3, "import os")`."""

    path: str
    """File."""
    line: int
    """Counted from 1."""
    text: str
    """The line, invalid bytes replaced, at most 1,000 characters."""


class ChangeKind(StrEnum):
    """What happened to an entry."""

    CREATED = "created"
    MODIFIED = "modified"
    REMOVED = "removed"
    LOST = "lost"
    """More happened than could be kept: look again. Its path is the watched directory."""


@dataclass(frozen=True, slots=True)
class Change:
    """Something happened to an entry. Example: `Change(ChangeKind.CREATED, "/work/a")`."""

    kind: ChangeKind
    """What."""
    path: str
    """Where."""
