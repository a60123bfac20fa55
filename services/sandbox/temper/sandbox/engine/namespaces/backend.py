"""`NamespacesBackend`: the slots, the launcher's configuration and what this host can enforce."""

import os
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

from temper.runtime.errors import TemperError, Unavailable
from temper.sandbox.engine import cgroups, identity, records
from temper.sandbox.engine.base import Capabilities, Guarantee, Isolation, Limits
from temper.sandbox.engine.door import PORT
from temper.sandbox.engine.guest import syscalls
from temper.sandbox.engine.launched import LaunchedSandbox
from temper.sandbox.engine.launcher import Launcher, base_python, guest_environment
from temper.sandbox.engine.slots import OFFERED, SlotBackend, guest_basis, rlimits

_HOST_ENFORCED: Final = ("wall_s", "output_bytes", "disk_bytes", "inodes", "open_files", "file_bytes")


class NamespacesBackend(SlotBackend):
    """Sandboxes in kernel namespaces.

    `slots` is the most sandboxes at once; slot n runs as uid `first_uid + n`. `readonly_paths` are host directories
    shown inside at their own path. `state_dir` is an absolute directory of this service alone.
    """

    ISOLATED = True
    STANDS_BY = True
    SHARED = ("/work", "/tmp")  # noqa: S108 - the sandbox's own

    def __init__(
        self,
        *,
        slots: int,
        state_dir: Path,
        first_uid: int = 210_000,
        readonly_paths: Sequence[str] = (),
        layout: cgroups.Layout | None = None,
    ) -> None:
        super().__init__(slots, state_dir)
        self._first_uid = first_uid
        self._readonly_paths = tuple(readonly_paths)
        self._layout = layout
        self._tree: cgroups.Tree | None = None
        self._record: Path | None = None
        self._user_namespace = os.geteuid() != 0

    async def start(self) -> None:
        """Reclaim, make the control groups, start the launcher, try one sandbox. Raises Unavailable."""
        if not syscalls.supported():
            raise Unavailable(
                f"no system call table for {os.uname().machine}", hint="use the process backend"
            )
        self._state_dir.mkdir(parents=True, exist_ok=True)
        (self._state_dir / "root").mkdir(exist_ok=True)
        records.reclaim(self._state_dir)
        self._make_groups()
        try:
            await self._restart_launcher()
            self._capabilities = self._describe()
            trial = await self.create("trial", Limits())
            await self._try_door(trial)
            await trial.destroy()
        except TemperError as error:
            self._capabilities = None
            await self.close()
            raise Unavailable(
                f"this host cannot make isolated sandboxes: {error.message}",
                hint="run as root or allow user namespaces, or choose the process backend for trusted environments",
            ) from error

    async def _try_door(self, trial: LaunchedSandbox) -> None:
        """Networks by name need a door into the sandbox's own network, which this process may or may not open."""
        assert self._capabilities is not None
        if self._user_namespace:
            return
        try:
            (await trial.listen(PORT)).close()
        except Unavailable as error:
            notes = (*self._capabilities.notes, f"no network by name: {error.message}")
            self._capabilities = replace(self._capabilities, notes=notes)
        else:
            self._capabilities = replace(self._capabilities, network_modes=("none", "allow", "open"))

    def _make_groups(self) -> None:
        layout = self._layout or cgroups.detect()
        cgroups.remove_trees(cgroups.orphans(layout))
        self._tree = cgroups.Tree(layout, identity.instance())
        self._record = records.write(self._state_dir, self._tree.directories, (self._snapshot_home,))
        try:
            self._groups = self._tree.grow(self._slots)
        except Unavailable as error:
            self._tree.remove()
            self._layout = cgroups.Layout(cgroups.Mode.NONE, {}, error.message)
            self._tree = cgroups.Tree(self._layout, identity.instance())
            self._groups = ()
        else:
            self._layout = layout

    def _describe(self) -> Capabilities:
        assert self._layout is not None
        counted = {"memory_bytes", "pids", "cpus"}
        grouped = self._layout.mode is not cgroups.Mode.NONE
        notes = [f"control groups: {self._layout.reason}"] if self._layout.reason else []
        if self._user_namespace:
            notes.append("without root: all sandboxes share one uid, kept apart by their namespaces alone")
        return Capabilities(
            "namespaces",
            Isolation.NAMESPACE,
            enforced=frozenset(_HOST_ENFORCED) | (counted | {"cpu_s"} if grouped else frozenset()),
            advisory=frozenset() if grouped else frozenset(counted | {"cpu_s"}),
            cgroup_mode=self._layout.mode.value,
            guarantees=frozenset(each.name for each in fields(Guarantee)) if grouped else frozenset(),
            filtered=True,
            **OFFERED,
            notes=tuple(notes),
        )

    def _make_launcher(self) -> Launcher:
        python = base_python()
        paths = list(self._readonly_paths)
        if not python.prefix.startswith("/usr"):
            paths.append(python.prefix)
        configuration = {
            **guest_basis("/work"),
            "isolated": True,
            "user_namespace": self._user_namespace,
            "base": str(self._state_dir.resolve() / "root"),
            "readonly_paths": paths,
            "directory": "/work",
            "shared": list(self.SHARED),
            "uids": [self._uid(slot) for slot in range(self._slots)],
        }
        return Launcher(configuration, guest_environment(python, "/work"))

    def _uid(self, slot: int) -> int:
        return os.geteuid() if self._user_namespace else self._first_uid + slot

    def _request(self, slot: int, limits: Limits) -> dict[str, Any]:
        grouped = bool(self._groups)
        # RLIMIT_NPROC counts by uid: with one uid for all it would count the others too.
        own_uid = not self._user_namespace
        return {
            "uid": self._uid(slot),
            "owner": None if self._user_namespace else self._uid(slot),
            "work_bytes": limits.disk_bytes,
            "tmp_bytes": limits.disk_bytes,
            "inodes": limits.inodes,
            "rlimits": rlimits(limits, with_memory=not grouped, with_pids=not grouped and own_uid),
        }

    async def close(self) -> None:
        """Destroy every sandbox, end the launcher, remove the control groups and the record."""
        await super().close()
        if self._tree is not None:
            self._tree.remove()
            self._tree = None
        self._groups = ()
        if self._record is not None:
            self._record.unlink(missing_ok=True)
            self._record = None
