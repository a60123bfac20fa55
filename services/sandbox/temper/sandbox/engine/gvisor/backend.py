"""`GvisorBackend`: slots in control groups, one `runsc` for each sandbox."""

import contextlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from temper.runtime.errors import Rejected, TemperError, Unavailable
from temper.sandbox.engine import cgroups, identity, records
from temper.sandbox.engine.base import Capabilities, Isolation, Limits, StartCost
from temper.sandbox.engine.container.backend import ContainerBackend
from temper.sandbox.engine.discard import discard
from temper.sandbox.engine.guest import root, syscalls
from temper.sandbox.engine.gvisor import bundle
from temper.sandbox.engine.gvisor.container import GvisorContainer, Runsc
from temper.sandbox.engine.launcher import Launcher, base_python, guest_environment

_PROGRAM: Final = "runsc"
_KERNEL_BYTES: Final = 96 << 20
"""What the user-space kernel and its file server need beside the agent's own memory."""
_KERNEL_THREADS: Final = 4096
_ENFORCED: Final = ("wall_s", "output_bytes", "disk_bytes", "inodes", "open_files")
_DIRECTORIES: Final = ("dev", "etc", "proc", "root", "tmp", "usr", "var", "work", "etc/alternatives")
_LINKS: Final = ("bin", "sbin", "lib", "lib64")


class GvisorBackend(ContainerBackend):
    """Containers of `runsc`. `rootfs` is a directory with a root, "" for this host's programs.

    `platform` is gVisor's way to catch system calls, "" for the program's own choice. Slot n runs as uid `first_uid + n`.
    """

    def __init__(
        self,
        *,
        slots: int,
        state_dir: Path,
        program: str = _PROGRAM,
        platform: str = "",
        rootfs: str = "",
        first_uid: int = 210_000,
        readonly_paths: Sequence[str] = (),
    ) -> None:
        self._home = state_dir.absolute() / f"gvisor-{identity.instance()}"
        super().__init__(slots, state_dir, self._home)
        self._program = program
        self._platform = platform
        self._rootfs = rootfs
        self._first_uid = first_uid
        self._readonly_paths = tuple(readonly_paths)
        self._runsc = Runsc(program, platform)
        self._launcher: Launcher | None = None
        self._tree: cgroups.Tree | None = None
        self._groups: Sequence[cgroups.Group] = ()
        self._record: Path | None = None
        self._python: tuple[str, ...] = ()
        self._made = 0

    async def start(self) -> None:
        """Reclaim, make the control groups, try one container. Raises Rejected, Unavailable."""
        found = shutil.which(self._program)
        if found is None:
            raise Unavailable(
                f"{self._program} is not installed", hint="apt-get install runsc, or see gvisor.dev"
            )
        if os.geteuid() != 0:
            raise Unavailable("the gvisor backend needs root to make the sandboxes' file systems")
        self._require_root()
        self._runsc = Runsc(found, self._platform)
        self._reclaim()
        self._make_groups()
        self._home.mkdir()
        self._make_root()
        try:
            await self._try()
        except TemperError as error:
            self._capabilities = None
            await self.close()
            raise Unavailable(f"runsc does not work here: {error.message}", hint=error.hint) from error

    def _require_root(self) -> None:
        if self._rootfs and not Path(self._rootfs).is_dir():
            raise Rejected(f"no directory {self._rootfs}", field="gvisor.rootfs")

    def _reclaim(self) -> None:
        """Dead owners' file systems; their processes died with them."""
        self._state_dir.mkdir(parents=True, exist_ok=True)
        records.reclaim(self._state_dir)
        for left in self._state_dir.absolute().glob("gvisor-*"):
            if identity.is_dead(left.name.removeprefix("gvisor-")):
                for tree in left.glob("*/*"):
                    if tree.is_mount():
                        with contextlib.suppress(OSError):
                            syscalls.detach(str(tree))
                discard(left)

    def _make_groups(self) -> None:
        layout = cgroups.detect()
        cgroups.remove_trees(cgroups.orphans(layout))
        self._tree = cgroups.Tree(layout, identity.instance())
        self._record = records.write(self._state_dir, self._tree.directories, ())
        try:
            self._groups = self._tree.grow(self._slots)
        except Unavailable:
            self._tree.remove()
            self._groups = ()

    def _make_root(self) -> None:
        """Mount points and a small /etc, for sandboxes that see this host's programs."""
        if self._rootfs:
            return
        base = self._home / "root"
        for name in _DIRECTORIES:
            (base / name).mkdir(parents=True)
        for name in _LINKS:
            host = Path("/") / name
            if host.is_symlink():
                (base / name).symlink_to(host.readlink())
            elif host.is_dir():
                (base / name).mkdir()
        for path in self._shown():
            (base / path[1:]).mkdir(parents=True, exist_ok=True)
        root.write_etc(str(base), [self._first_uid + slot for slot in range(self._slots)])

    def _base(self) -> Path:
        return Path(self._rootfs).absolute() if self._rootfs else self._home / "root"

    def _shown(self) -> list[str]:
        """Host directories visible inside."""
        paths = list(self._readonly_paths)
        if not self._rootfs:
            prefix = base_python().prefix
            paths += ["/usr", "/etc/alternatives", *([] if prefix.startswith("/usr") else [prefix])]
            paths += [f"/{name}" for name in _LINKS if not (Path("/") / name).is_symlink()]
        return [path for path in paths if Path(path).is_dir()]

    async def _try(self) -> None:
        options = ("-s", "-B", "-X", "utf8")
        self._python = ("python3", *options) if self._rootfs else (base_python().executable, "-S", *options)
        self._capabilities = self._describe()
        self._python = self._python if await self._runs(self._python[0]) else ()
        self._capabilities = self._describe()

    def _describe(self) -> Capabilities:
        assert self._tree is not None
        grouped = bool(self._groups)
        counted = frozenset({"cpus", "cpu_s"})
        notes = ["a sandbox over its memory limit dies as a whole, with the outcome oom_killed"]
        notes.append("a watch tells a change of a file's content when its kernel writes it back, not at once")
        notes += (
            []
            if self._python
            else ["the root has no python3: no python tool, no sessions, no network by name"]
        )
        return Capabilities(
            "gvisor",
            Isolation.VM,
            enforced=frozenset(_ENFORCED) | (counted if grouped else frozenset()),
            advisory=frozenset({"memory_bytes", "pids", "file_bytes"})
            | (frozenset() if grouped else counted),
            network_modes=("none", "allow", "open") if self._python else ("none",),
            snapshots=("files",),
            max_fork=self._slots,
            sessions=bool(self._python),
            terminals=bool(self._python),
            streaming=True,
            processes=True,
            trees=True,
            start_cost=StartCost.CONTAINER,
            cgroup_mode=self._tree.mode.value,
            notes=tuple(notes),
        )

    async def _container(self, slot: int, name: str, limits: Limits, network: str) -> GvisorContainer:
        self._made += 1
        unique = f"temper-{identity.instance()}-{slot}-{self._made}"  # names are the host's, whoever's state they lie in
        place = self._home / unique
        (place / "state").mkdir(parents=True)
        group = self._groups[slot] if self._groups else None
        if group is not None:
            group.apply(
                replace(limits, memory_bytes=limits.memory_bytes + _KERNEL_BYTES, pids=_KERNEL_THREADS)
            )
        uid = self._first_uid + slot
        container = GvisorContainer(self._runsc, unique, place, uid, group, self._python, self._environment())
        try:
            container.mount_trees(limits)
            told = bundle.configuration(
                self._base(), container.trees, self._shown(), self._environment(), limits
            )
            (place / "config.json").write_text(json.dumps(told))
            program = container.words("run", "--bundle", str(place), unique)
            request = {"slot": slot, "program": program, "speaks": True}
            launcher = await self._launch()
            await container.attend(launcher.create(request, group.join_descriptors() if group else []))
        except BaseException:
            with contextlib.suppress(Unavailable):
                await container.remove()
            raise
        return container

    async def _launch(self) -> Launcher:
        if self._launcher is None or not self._launcher.alive:
            if self._launcher is not None:
                self._launcher.close()
            self._launcher = Launcher(
                {"isolated": False, "environment": {}}, {"PATH": os.environ.get("PATH", "/usr/bin:/bin")}
            )
            await self._launcher.start()
        return self._launcher

    def _environment(self) -> Mapping[str, str]:
        full = dict(guest_environment(base_python(), "/work"))
        return full | ({"PATH": "/usr/local/bin:/usr/bin:/bin"} if self._rootfs else {})

    async def close(self) -> None:
        """Destroy every sandbox, end the launcher, remove groups, file systems and the record."""
        await super().close()
        if self._launcher is not None:
            self._launcher.close()
            self._launcher = None
        if self._tree is not None:
            self._tree.remove()
            self._tree = None
        discard(self._home)
        if self._record is not None:
            self._record.unlink(missing_ok=True)
            self._record = None
