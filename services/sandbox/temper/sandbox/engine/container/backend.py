"""Slots, snapshots, forks and the end of all, for every backend of containers."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from temper.runtime.errors import Exhausted, Rejected, Unavailable
from temper.sandbox.engine.base import Capabilities, Fork, Limits
from temper.sandbox.engine.container.sandbox import ContainerSandbox
from temper.sandbox.engine.container.seam import Container
from temper.sandbox.engine.forks import forked
from temper.sandbox.engine.snapshots import Snapshots


class ContainerBackend(ABC):
    """A backend with a fixed number of slots. Subclasses say how a container is made."""

    def __init__(self, slots: int, state_dir: Path, home: Path) -> None:
        self._slots = slots
        self._state_dir = state_dir
        self._free = list(range(slots - 1, -1, -1))
        self._live: dict[int, ContainerSandbox] = {}
        self._snapshots = Snapshots(home / "snapshots")
        self._capabilities: Capabilities | None = None

    @property
    def capabilities(self) -> Capabilities:
        """Valid after `start`."""
        if self._capabilities is None:
            raise Unavailable("the backend has not started")
        return self._capabilities

    @abstractmethod
    async def start(self) -> None:
        """Reclaim, get ready. Raises Unavailable."""

    @abstractmethod
    async def _container(self, slot: int, name: str, limits: Limits, network: str) -> Container:
        """A fresh container in a slot. Raises Rejected, Unavailable."""

    async def create(self, name: str, limits: Limits, network: str = "") -> ContainerSandbox:
        """A fresh sandbox. Raises Exhausted, Rejected, Unavailable."""
        modes = self.capabilities.network_modes
        if network and network not in modes:
            raise Rejected(
                f"this backend has no network {network!r}",
                field="network",
                hint=f"it has: {', '.join(modes)}",
            )
        if not self._free:
            raise Exhausted(f"all {self._slots} sandboxes are taken", hint="retry when one is released")
        slot = self._free.pop()

        async def make() -> Container:
            return await self._container(slot, name, limits, network or modes[0])

        try:
            sandbox = ContainerSandbox(await make(), make, self._snapshots, lambda: self._give_back(slot))
        except BaseException:
            self._free.append(slot)
            raise
        self._live[slot] = sandbox
        return sandbox

    async def _runs(self, program: str) -> bool:
        """Whether a program is there, tried in a sandbox of the backend's own."""
        trial = await self.create("trial", Limits())
        try:
            return await trial.has_program(program)
        finally:
            await trial.destroy()

    def _give_back(self, slot: int) -> None:
        if self._live.pop(slot, None) is not None:
            self._free.append(slot)

    async def fork(self, snapshot: str, names: Sequence[str], limits: Limits) -> list[Fork]:
        """One new sandbox per name with the files of a snapshot. Raises Rejected for an unknown one."""
        self._snapshots.require(snapshot)
        most = self.capabilities.max_fork
        if not 1 <= len(names) <= most:
            raise Rejected(f"cannot fork {len(names)} at once", field="count", hint=f"1 to {most}")
        return [await forked(self.create(name, limits), snapshot, name) for name in names]

    async def forget(self, snapshot: str) -> None:
        """Drop a snapshot. Idempotent."""
        self._snapshots.forget(snapshot)

    async def close(self) -> None:
        """Destroy every sandbox, drop every snapshot."""
        for sandbox in list(self._live.values()):
            await sandbox.destroy()
        self._snapshots.clear()
