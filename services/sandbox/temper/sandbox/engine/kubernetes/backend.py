"""`KubernetesBackend`: claims on warm pools, one template and pool for each kind of limits."""

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from temper.runtime.errors import Conflict, TemperError, Unavailable
from temper.sandbox.engine import identity
from temper.sandbox.engine.base import Capabilities, Isolation, Limits, StartCost
from temper.sandbox.engine.container.backend import ContainerBackend
from temper.sandbox.engine.kubernetes import resources
from temper.sandbox.engine.kubernetes.api import Access, Api
from temper.sandbox.engine.kubernetes.container import CLAIMS, PodContainer
from temper.sandbox.engine.kubernetes.resources import CORE, EXTENSIONS, OWNER, PLACE, Owner, PodSettings

_POLL_S: Final = 0.1
_LOOK_S: Final = 2.0
_TEMPLATES: Final = "sandboxtemplates"
_POOLS: Final = "sandboxwarmpools"
_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
_STRONG: Final = ("gvisor", "kata", "firecracker", "runsc")


class KubernetesBackend(ContainerBackend):
    """Pods of a cluster that has the agent-sandbox controllers. `warm` pods of each kind wait in the cluster.

    A claim ends by itself after `lease_s` unless this service extends it, so a service that is killed leaves nothing for
    longer.
    """

    def __init__(
        self,
        *,
        slots: int,
        state_dir: Path,
        access: Access,
        pods: PodSettings,
        owner: Owner = Owner(),  # noqa: B008 - frozen
        warm: int = 1,
        lease_s: float = 600.0,
        ready_s: float = 120.0,
    ) -> None:
        super().__init__(slots, state_dir, state_dir / f"kubernetes-{identity.instance()}")
        self._api = Api(access)
        self._pods = pods
        self._owner = owner
        self._warm = warm
        self._lease_s = lease_s
        self._ready_s = ready_s
        self._kinds: dict[str, asyncio.Task[str]] = {}
        self._containers: dict[str, PodContainer] = {}
        self._labels: dict[str, str] = {}
        self._python: tuple[str, ...] = ("python3", "-s", "-B", "-X", "utf8")
        self._keeping: asyncio.Task[None] | None = None
        self._place = ""

    async def start(self) -> None:
        """Connect, reclaim, try one claim. Raises Rejected, Unavailable."""
        self._state_dir.mkdir(parents=True, exist_ok=True)
        self._place = _place(self._state_dir)
        self._labels = {OWNER: identity.instance(), PLACE: self._place}
        await self._api.connect()
        try:
            await self._reclaim()
            self._keeping = asyncio.create_task(self._keep())
            await self._try()
        except TemperError:
            self._capabilities = None
            await self.close()
            raise

    async def _reclaim(self) -> None:
        """Delete what dead owners of this state directory left."""
        for kind in (CLAIMS, _POOLS, _TEMPLATES):
            query = {"labelSelector": f"{PLACE}={self._place}"}
            found = await self._api.ask("GET", self._api.path(EXTENSIONS, kind), query=query)
            if found is None:
                raise Unavailable(
                    f"the cluster has no {kind}.{EXTENSIONS}", hint="install the agent-sandbox controllers"
                )
            for each in found["items"]:
                if identity.is_dead(each["metadata"]["labels"].get(OWNER, "")):
                    await self._api.ask("DELETE", self._api.path(EXTENSIONS, kind, each["metadata"]["name"]))

    async def _try(self) -> None:
        self._capabilities = self._describe()
        self._python = self._python if await self._runs(self._python[0]) else ()
        self._capabilities = self._describe()

    def _describe(self) -> Capabilities:
        strong = any(word in self._pods.runtime_class.lower() for word in _STRONG)
        notes = [
            f"image {self._pods.image}, runtime class {self._pods.runtime_class or 'of the cluster'}",
            "memory, cpu and disk are limited by the cluster, which tells no counters: an outcome cannot name them",
            "no network holds only where the cluster enforces network policies",
        ]
        notes += (
            []
            if self._python
            else ["the image has no python3: no python tool, no sessions, no network by name"]
        )
        return Capabilities(
            "kubernetes",
            Isolation.VM if strong else Isolation.NAMESPACE,
            enforced=frozenset({"wall_s", "output_bytes", "open_files", "file_bytes"}),
            advisory=frozenset({"memory_bytes", "cpus", "disk_bytes", "pids", "cpu_s", "inodes"}),
            network_modes=("none", "allow", "open") if self._python else ("none",),
            sessions=bool(self._python),
            terminals=bool(self._python),
            streaming=True,
            processes=True,
            guarantees=frozenset({"memory_bytes", "cpus", "disk_bytes"}),
            start_cost=StartCost.MACHINE,
            cgroup_mode="kubernetes",
            notes=tuple(notes),
        )

    async def _container(self, slot: int, name: str, limits: Limits, network: str) -> PodContainer:
        pool = await self._pool(limits)
        unique = f"temper-{slot}-{uuid4().hex[:12]}"
        until = time.time() + self._lease_s
        body = resources.claim(self._about(unique), pool, until)
        await self._api.ask("POST", self._api.path(EXTENSIONS, CLAIMS), body)
        try:
            pod = await self._bound(unique)
        except BaseException:
            with contextlib.suppress(TemperError):
                await self._api.ask("DELETE", self._api.path(EXTENSIONS, CLAIMS, unique))
            raise
        container = PodContainer(self._api, unique, pod, limits, self._python, self._environment())
        self._containers[unique] = container
        container.died.add_done_callback(lambda _: self._containers.pop(unique, None))
        return container

    async def _pool(self, limits: Limits) -> str:
        """The warm pool for these limits, made at the first use."""
        kind = resources.kind_of(self._pods, limits)
        task = self._kinds.get(kind)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._kinds[kind] = asyncio.create_task(self._make_pool(kind, limits))
        return await asyncio.shield(task)

    async def _make_pool(self, kind: str, limits: Limits) -> str:
        name = f"temper-{self._place[:8]}-{uuid4().hex[:6]}-{kind}"
        objects: Sequence[tuple[str, Mapping[str, Any]]] = (
            (_TEMPLATES, resources.template(self._about(name), self._pods, limits, self._labels)),
            (_POOLS, resources.warm_pool(self._about(name), name, self._warm)),
        )
        for plural, body in objects:
            with contextlib.suppress(Conflict):
                await self._api.ask("POST", self._api.path(EXTENSIONS, plural), body)
        return name

    def _about(self, name: str) -> Mapping[str, Any]:
        return resources.metadata(name, self._labels, self._owner)

    async def _bound(self, claim: str) -> str:
        """Wait until the claim has a ready pod; returns its name. Raises Unavailable with the cluster's reason."""
        reason = "nothing"
        try:
            async with asyncio.timeout(self._ready_s):
                while True:
                    told = await self._api.ask("GET", self._api.path(EXTENSIONS, CLAIMS, claim))
                    if told is None:
                        raise Unavailable("the claim was deleted while its sandbox was being made")
                    ready, reason = _ready(told)
                    if ready:
                        return await self._pod_of(str(told["status"]["sandbox"]["name"]))
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise Unavailable(f"no pod within {self._ready_s:.0f} s; the cluster says: {reason}") from None

    async def _pod_of(self, sandbox: str) -> str:
        told = await self._api.ask("GET", self._api.path(CORE, "sandboxes", sandbox))
        if told is None:
            raise Unavailable(f"the cluster has no sandbox {sandbox}")
        annotations: Mapping[str, str] = told["metadata"].get("annotations") or {}
        return annotations.get(resources.POD_NAME, sandbox)

    async def _keep(self) -> None:
        """Extend the claims, and look which pods are gone, for ever."""
        extended = time.time()
        while True:
            await asyncio.sleep(_LOOK_S)
            with contextlib.suppress(TemperError):
                await self._look()
                if time.time() - extended > self._lease_s / 3:
                    extended = time.time()
                    await self._extend(extended + self._lease_s)

    async def _look(self) -> None:
        query = {"labelSelector": f"{OWNER}={self._labels[OWNER]}"}
        watched = list(self._containers.values())
        told = await self._api.ask("GET", self._api.path("v1", "pods"), query=query) or {"items": []}
        running = {
            each["metadata"]["name"]
            for each in told["items"]
            if each.get("status", {}).get("phase") == "Running"
            and "deletionTimestamp" not in each["metadata"]
        }
        for container in watched:
            if container.pod not in running:
                container.lost()

    async def _extend(self, until: float) -> None:
        body = {"spec": {"lifecycle": resources.lifecycle(until)}}
        for claim in list(self._containers):
            await self._api.ask("PATCH", self._api.path(EXTENSIONS, CLAIMS, claim), body)

    def _environment(self) -> Mapping[str, str]:
        return {"PATH": _PATH, "HOME": "/work", "LANG": "C.UTF-8", "TMPDIR": "/tmp", "PYTHONHASHSEED": "0"}  # noqa: S108 - the sandbox's own

    async def close(self) -> None:
        """Delete every claim, pool and template of this service."""
        if self._keeping is not None:
            self._keeping.cancel()
        await super().close()
        made = [
            task.result()
            for task in self._kinds.values()
            if task.done() and not task.cancelled() and not task.exception()
        ]
        for name in made:
            for plural in (_POOLS, _TEMPLATES):
                with contextlib.suppress(TemperError):
                    await self._api.ask("DELETE", self._api.path(EXTENSIONS, plural, name))
        self._kinds.clear()
        await self._api.close()


def _ready(claim: Mapping[str, Any]) -> tuple[bool, str]:
    """Whether its Ready condition holds, and what the cluster says about it."""
    status = claim.get("status") or {}
    for condition in status.get("conditions") or []:
        if condition["type"] == "Ready":
            named = bool((status.get("sandbox") or {}).get("name"))
            return condition[
                "status"
            ] == "True" and named, f"{condition.get('reason')}: {condition.get('message')}"
    return False, "no condition yet"


def _place(state_dir: Path) -> str:
    path = state_dir / "kubernetes-place"
    if not path.exists():
        path.write_text(uuid4().hex)
    return path.read_text()
