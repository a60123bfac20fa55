"""What a service writes down before it creates anything on the host, so that a successor can clean up after kill -9.

One JSON file per service process in the state directory. Processes need no record: the kernel kills them with the
launcher, and the launcher with the service. Control groups and private directories stay, and are listed here.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from temper.sandbox.engine import cgroups, identity
from temper.sandbox.engine.discard import discard

_PATTERN: Final = "owner-*.json"


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """What a start found and removed. Example: `Reclaimed(owners=1, groups=36, directories=2)`."""

    owners: int = 0
    """Service processes that ended without cleaning up."""
    groups: int = 0
    """Control groups removed."""
    directories: int = 0
    """Private directories removed."""


def write(state_dir: Path, groups: Sequence[Path], directories: Sequence[Path]) -> Path:
    """Record the intent. Returns the file, to be removed after an orderly end."""
    path = state_dir / f"owner-{identity.instance()}.json"
    content = {
        "pid": os.getpid(),
        "started": identity.started(os.getpid()),
        "groups": [str(each) for each in groups],
        "directories": [str(each) for each in directories],
    }
    scratch = path.with_suffix(".tmp")
    scratch.write_text(json.dumps(content))
    scratch.replace(path)
    return path


def reclaim(state_dir: Path) -> Reclaimed:
    """Remove what dead owners left. A living owner's things are not touched."""
    owners = groups = directories = 0
    for path in state_dir.glob(_PATTERN):
        record = _read(path)
        if record is None or identity.alive(record["pid"], record["started"]):
            continue
        owners += 1
        groups += cgroups.remove_trees(Path(each) for each in record["groups"])
        for each in record["directories"]:
            directory = Path(each)
            if directory.is_dir() and state_dir in directory.parents:
                discard(directory)
                directories += 1
        if not any(Path(each).is_dir() for each in record["groups"]):
            path.unlink()
    return Reclaimed(owners, groups, directories)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None
