"""Control groups: which kind this host has, and one group per sandbox slot.

Order of choice: v2 (a writable subtree with the memory, pids and cpu controllers), v1 (the same as mounted
hierarchies), none. A hybrid host shows an empty v2 tree beside v1 controllers and is a v1 host.

Groups are made once per slot and used by one sandbox after another: making and removing them for each would cost
as much as the rest of a sandbox, and the kernel lets removed memory groups linger. Counters are read as differences.
A process joins by writing "0" itself; writing another's pid would stop every fork of the host for a moment.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from temper.runtime.errors import Unavailable
from temper.sandbox.engine import identity
from temper.sandbox.engine.groups import Group, GroupV1, GroupV2, lift_quota

PREFIX: Final = "temper-sandbox-"
_WANTED: Final = ("memory", "pids", "cpu")
_REMOVE_S: Final = 5.0
_REMOVE_POLL_S: Final = 0.01
_V2_NAME: Final = "unified"


class Mode(StrEnum):
    """Kind of control groups in use."""

    V2 = "v2"
    V1 = "v1"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Layout:
    """Where groups can be made. Example: `Layout(Mode.V1, {"pids": Path("/sys/fs/cgroup/pids")})`."""

    mode: Mode
    """Kind."""
    parents: Mapping[str, Path]
    """Directory for our groups: by controller for v1, under "unified" for v2."""
    reason: str = ""
    """Why it is no better, in words for a doctor."""


def detect(mountinfo: str | None = None, own: str | None = None) -> Layout:
    """The layout of this host; the texts of /proc/self/{mountinfo,cgroup} can be given for another."""
    mounts = _mounts(mountinfo if mountinfo is not None else Path("/proc/self/mountinfo").read_text())
    paths = _own_paths(own if own is not None else Path("/proc/self/cgroup").read_text())
    unified = mounts.get(_V2_NAME)
    if unified is not None:
        parent = _existing(unified, paths.get("", "/"))
        if set(_WANTED) <= set(_read(parent / "cgroup.controllers").split()) and os.access(parent, os.W_OK):
            return Layout(Mode.V2, {_V2_NAME: parent})
    missing = [name for name in _WANTED if name not in mounts]
    if missing:
        return Layout(Mode.NONE, {}, f"no controller for {', '.join(missing)}")
    parents = {
        name: _existing(mounts[name], paths.get(name, "/"))
        for name in (*_WANTED, "cpuacct")
        if name in mounts
    }
    locked = [str(parent) for parent in parents.values() if not os.access(parent, os.W_OK)]
    if locked:
        return Layout(Mode.NONE, {}, f"not writable: {', '.join(locked)}")
    return Layout(Mode.V1, parents)


def _mounts(mountinfo: str) -> dict[str, Path]:
    """Controller to mount point; v2 under "unified". Format: proc_pid_mountinfo(5)."""
    found: dict[str, Path] = {}
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, tail = left.split(), right.split()
        if len(fields) < 5 or len(tail) < 3:
            continue
        if tail[0] == "cgroup2":
            found.setdefault(_V2_NAME, Path(fields[4]))
        elif tail[0] == "cgroup":
            for option in tail[2].split(","):
                found.setdefault(option, Path(fields[4]))
    return found


def _own_paths(text: str) -> dict[str, str]:
    """Controller to this process's own group; v2 under ""."""
    paths: dict[str, str] = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            paths[controller] = path
    return paths


def _existing(mount: Path, path: str) -> Path:
    """Our own group where it is visible (a container may see another root), else the top."""
    inner = mount / path.lstrip("/")
    return inner if inner.is_dir() else mount


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


class Tree:
    """All groups of one host service: `<parent>/temper-sandbox-<instance>/<slot>` in each hierarchy."""

    def __init__(self, layout: Layout, instance: str) -> None:
        self.mode = layout.mode
        self._roots = {name: parent / f"{PREFIX}{instance}" for name, parent in layout.parents.items()}
        self._groups: list[GroupV1 | GroupV2] = []

    @property
    def directories(self) -> list[Path]:
        """What a successor must remove if this process is killed."""
        return list(self._roots.values())

    def grow(self, slots: int) -> Sequence[Group]:
        """Make the groups of the slots. Raises Unavailable if the kernel refuses."""
        try:
            for root in self._roots.values():
                root.mkdir(exist_ok=True)
            if self.mode is Mode.V2:
                _delegate(self._roots[_V2_NAME])
                self._groups = [GroupV2(self._roots[_V2_NAME] / str(slot)) for slot in range(slots)]
            elif self.mode is Mode.V1:
                self._groups = [self._group_v1(slot) for slot in range(slots)]
        except OSError as error:
            raise Unavailable(f"cannot make control groups: {error}") from error
        return self._groups

    def _group_v1(self, slot: int) -> GroupV1:
        return GroupV1({name: root / str(slot) for name, root in self._roots.items()})

    def remove(self) -> None:
        """Remove every group; processes still in one are killed."""
        for group in self._groups:
            group.close()
        self._groups = []
        remove_trees(self._roots.values())


def _delegate(root: Path) -> None:
    """Hand the controllers down. A group with processes of its own cannot, so this process steps aside first."""
    wanted = " ".join(f"+{name}" for name in _WANTED)
    try:
        (root.parent / "cgroup.subtree_control").write_text(wanted)
    except OSError:
        aside = root.parent / "temper-host"
        aside.mkdir(exist_ok=True)
        (aside / "cgroup.procs").write_text("0")
        (root.parent / "cgroup.subtree_control").write_text(wanted)
    (root / "cgroup.subtree_control").write_text(wanted)


def orphans(layout: Layout) -> list[Path]:
    """Groups of dead owners beside ours, whether or not a record of them is left."""
    found = [path for parent in layout.parents.values() for path in parent.glob(f"{PREFIX}*")]
    return [path for path in found if identity.is_dead(path.name.removeprefix(PREFIX))]


def remove_trees(roots: Iterable[Path]) -> int:
    """Kill what is in these groups and remove them; returns how many directories went. Also for a predecessor's."""
    removed = 0
    for root in roots:
        if not root.name.startswith(PREFIX) or not root.is_dir():
            continue
        for directory in (*sorted(each for each in root.iterdir() if each.is_dir()), root):
            removed += _remove(directory)
    return removed


def _remove(directory: Path) -> bool:
    """A killed process is a member until it has died, so this tries again, within bounds."""
    until = time.monotonic() + _REMOVE_S
    lift_quota(directory)
    while True:
        _kill_members(directory)
        try:
            directory.rmdir()
        except FileNotFoundError:
            return False
        except OSError:
            if time.monotonic() > until:
                return False
            time.sleep(_REMOVE_POLL_S)
        else:
            return True


def _kill_members(directory: Path) -> None:
    for pid in _read(directory / "cgroup.procs").split():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(int(pid), signal.SIGKILL)
