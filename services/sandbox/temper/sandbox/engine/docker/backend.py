"""`DockerBackend`: slots on an engine, with everything that a container may do taken away."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from docker.types import Ulimit

from temper.runtime.errors import Rejected, TemperError, Unavailable
from temper.sandbox.engine import identity
from temper.sandbox.engine.base import Capabilities, Isolation, Limits, StartCost
from temper.sandbox.engine.container import refused
from temper.sandbox.engine.container.backend import ContainerBackend
from temper.sandbox.engine.discard import discard
from temper.sandbox.engine.docker import images
from temper.sandbox.engine.docker.client import MISSING, Client
from temper.sandbox.engine.docker.container import TREES, DockerContainer
from temper.sandbox.engine.docker.images import ImageSource
from temper.sandbox.engine.launcher import base_python, guest_environment

OWNER: Final = "temper.sandbox.owner"
"""Label: the service process that made a container."""
PLACE: Final = "temper.sandbox.place"
"""Label: the state directory of that service, by an id that lies in it."""
_GVISOR: Final = "runsc"
_ENFORCED: Final = (
    *("memory_bytes", "cpus", "pids", "wall_s", "cpu_s", "output_bytes", "disk_bytes", "inodes"),
    *("open_files", "file_bytes"),
)
_MASKED: Final = (
    *("/proc/asound", "/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list"),
    *("/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/proc/config.gz", "/sys", "/dev/mqueue"),
)


class DockerBackend(ContainerBackend):
    """Containers of the engine at `url`.

    `runtime` is an OCI runtime the engine knows, "" for its default, "auto" for runsc where the engine has it. Slot n runs
    as uid `first_uid + n`.
    """

    def __init__(
        self,
        *,
        slots: int,
        state_dir: Path,
        url: str = "unix:///var/run/docker.sock",
        source: ImageSource = ImageSource(),  # noqa: B008 - frozen
        runtime: str = "auto",
        first_uid: int = 210_000,
        readonly_paths: Sequence[str] = (),
    ) -> None:
        super().__init__(slots, state_dir, state_dir / f"docker-{identity.instance()}")
        self._home = state_dir / f"docker-{identity.instance()}"
        self._client = Client(url)
        self._source = source
        self._runtime = runtime
        self._first_uid = first_uid
        self._readonly_paths = tuple(readonly_paths)
        self._image = ""
        self._place = ""
        self._python: tuple[str, ...] = ()
        self._made = 0

    async def start(self) -> None:
        """Connect, reclaim, have the image, try one container. Raises Rejected, Unavailable."""
        self._state_dir.mkdir(parents=True, exist_ok=True)
        self._place = _place(self._state_dir)
        await self._client.connect()
        try:
            self._runtime = await self._choose_runtime()
            await self._reclaim()
            uids = [self._first_uid + slot for slot in range(self._slots)]
            self._image = await images.ensure(self._client, self._source, uids, self._place)
            await self._try()
        except TemperError:
            self._capabilities = None
            await self.close()
            raise

    async def runtimes(self) -> set[str]:
        """OCI runtimes that the engine knows. Raises Unavailable."""
        told: dict[str, Any] = await self._client.call(self._client.api.info)
        return set(told.get("Runtimes") or {})

    async def _choose_runtime(self) -> str:
        known = await self.runtimes()
        if self._runtime == "auto":
            return _GVISOR if _GVISOR in known else ""
        if self._runtime and self._runtime not in known:
            raise Rejected(
                f"the engine has no runtime {self._runtime!r}",
                field="docker.runtime",
                hint=", ".join(sorted(known)),
            )
        return self._runtime

    async def _reclaim(self) -> None:
        """Remove what dead owners of this state directory left: a container outlives its owner for a moment."""
        label = {"label": f"{PLACE}={self._place}"}
        for each in await self._client.call(self._client.api.containers, all=True, filters=label):
            owner = each["Labels"].get(OWNER, "")
            if owner != identity.instance() and identity.is_dead(owner):
                with contextlib.suppress(MISSING):
                    await self._client.call(self._client.api.remove_container, each["Id"], force=True, v=True)
        for left in self._state_dir.glob("docker-*"):
            if identity.is_dead(left.name.removeprefix("docker-")):
                discard(left)

    async def _try(self) -> None:
        python = base_python()
        options = ("-s", "-B", "-X", "utf8")
        self._python = (
            (python.executable, "-S", *options) if self._source.own_programs else ("python3", *options)
        )
        self._capabilities = self._describe(seen=False)
        trial = await self.create("trial", Limits())
        try:
            found = await trial.has_program(self._python[0])
            seen = trial.reaches_files
        finally:
            await trial.destroy()
        self._python = self._python if found else ()
        self._capabilities = self._describe(seen=seen)

    def _describe(self, *, seen: bool) -> Capabilities:
        gvisor = self._runtime == _GVISOR
        notes = [f"image {self._image}"]
        if not self._python:
            notes.append("the image has no python3: no python tool, no sessions")
        if not seen:
            notes.append(
                "containers cannot be seen from here: no counts of memory and processes, single files only"
            )
        enforced = frozenset(_ENFORCED)
        counted = frozenset({"memory_bytes", "pids", "cpu_s"})
        return Capabilities(
            "docker",
            Isolation.VM if gvisor else Isolation.NAMESPACE,
            enforced=enforced if seen else enforced - counted,
            advisory=frozenset() if seen else counted,
            network_modes=("none", "allow", "open") if self._python or seen else ("none",),
            snapshots=("files",) if seen else (),
            max_fork=self._slots if seen else 0,
            sessions=bool(self._python),
            terminals=bool(self._python),
            streaming=True,
            processes=True,
            trees=seen,
            filtered=not gvisor,
            start_cost=StartCost.CONTAINER,
            cgroup_mode="docker",
            notes=tuple(notes),
        )

    async def _container(self, slot: int, name: str, limits: Limits, network: str) -> DockerContainer:
        self._made += 1
        unique = f"temper-{self._place[:8]}-{slot}-{self._made}-{uuid4().hex[:8]}"
        uid = self._first_uid + slot
        await self._client.call(self._create, unique, name, uid, limits)
        container = DockerContainer(self._client, unique, uid, self._python, self._environment())
        try:
            await container.begin(kernel_shared=self._runtime != _GVISOR)
        except BaseException:
            with contextlib.suppress(Unavailable):
                await container.remove()
            raise
        return container

    def _create(self, unique: str, name: str, uid: int, limits: Limits) -> None:
        api = self._client.api
        host = api.create_host_config(
            auto_remove=True,
            binds=self._binds(),
            cap_drop=["ALL"],
            init=True,
            ipc_mode="private",
            mem_limit=limits.memory_bytes,
            memswap_limit=limits.memory_bytes,
            nano_cpus=int(limits.cpus * 1e9),
            network_mode="none",  # a way out is a door, never an interface
            pids_limit=limits.pids,
            read_only=True,
            runtime=self._runtime or None,
            security_opt=["no-new-privileges:true", f"seccomp={json.dumps(refused.profile())}"],
            shm_size=limits.disk_bytes,
            tmpfs={tree: _tmpfs(tree, uid, limits) for tree in TREES},
            ulimits=[
                Ulimit(name="nofile", soft=limits.open_files, hard=limits.open_files),
                Ulimit(name="fsize", soft=limits.file_bytes, hard=limits.file_bytes),
                Ulimit(name="core", soft=0, hard=0),
            ],
        )
        host["MaskedPaths"] = list(_MASKED)
        host["CgroupnsMode"] = "private"  # a container's groups have no names of the host's
        labels = {OWNER: identity.instance(), PLACE: self._place, "temper.sandbox.name": name}
        api.create_container(
            self._image,
            ["/bin/cat"],
            entrypoint=[],
            hostname="sandbox",
            host_config=host,
            labels=labels,
            name=unique,
            stdin_open=True,
            user="0:0",
            working_dir="/work",
        )

    def _binds(self) -> Mapping[str, Mapping[str, str]]:
        paths = list(self._readonly_paths)
        if self._source.own_programs:
            prefix = base_python().prefix
            paths += ["/usr", "/etc/alternatives", *([] if prefix.startswith("/usr") else [prefix])]
            paths += [each for each in ("/bin", "/lib", "/lib64") if not Path(each).is_symlink()]
        return {path: {"bind": path, "mode": "ro"} for path in paths if Path(path).exists()}

    def _environment(self) -> Mapping[str, str]:
        full = guest_environment(base_python(), "/work")
        if self._source.own_programs:
            return full
        return {name: value for name, value in full.items() if name != "PATH"}  # the image has its own

    async def close(self) -> None:
        """Remove every container, and the image where it was made of nothing but mount points."""
        await super().close()
        if self._image and self._source.own_programs:
            await images.drop(self._client, self._image)
        discard(self._home)
        self._client.close()


def _tmpfs(tree: str, uid: int, limits: Limits) -> str:
    mode = "0700" if tree == TREES[0] else "1777"
    return f"size={limits.disk_bytes},nr_inodes={limits.inodes},mode={mode},uid={uid},gid={uid},exec"


def _place(state_dir: Path) -> str:
    path = state_dir / "docker-place"
    if not path.exists():
        path.write_text(uuid4().hex)
    return path.read_text()
