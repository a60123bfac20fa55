"""What the two launcher-made backends share: slots, the launcher, creation and the end."""

import asyncio
import contextlib
import socket
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from temper.runtime.errors import Exhausted, Rejected, Unavailable
from temper.sandbox.engine import identity
from temper.sandbox.engine.base import Capabilities, Fork, Limits
from temper.sandbox.engine.forks import forked
from temper.sandbox.engine.groups import Group
from temper.sandbox.engine.guest import wire
from temper.sandbox.engine.launched import LaunchedSandbox
from temper.sandbox.engine.launcher import Launcher, base_python, guest_environment
from temper.sandbox.engine.life import Place
from temper.sandbox.engine.snapshots import Snapshots

MAX_FORK: Final = 100
"""Most sandboxes of one fork."""
OFFERED: Final[Mapping[str, Any]] = {
    "snapshots": ("files",),
    "max_fork": MAX_FORK,
    "sessions": True,
    "terminals": True,
    "streaming": True,
    "processes": True,
    "trees": True,
}
"""Capabilities that follow from the shared parts."""


class SlotBackend(ABC):
    """A backend with a fixed number of slots over one launcher. Subclasses say how a sandbox is set up."""

    ISOLATED: ClassVar[bool]
    """Whether the kernel ends everything of a sandbox with its init."""
    STANDS_BY: ClassVar[bool] = False
    """Whether the far side can be forked before it is known who comes."""
    SHARED: ClassVar[tuple[str, ...]]
    """Names of the writable trees, in the order in which init hands over their descriptors."""

    def __init__(self, slots: int, state_dir: Path) -> None:
        self._slots = slots
        self._state_dir = state_dir
        self._snapshots = Snapshots(self._snapshot_home)
        self._free = list(range(slots - 1, -1, -1))
        self._live: dict[int, LaunchedSandbox] = {}
        self._groups: Sequence[Group] = ()
        self._launcher: Launcher | None = None
        self._standby: tuple[int, socket.socket] | None = None
        self._capabilities: Capabilities | None = None

    @property
    def capabilities(self) -> Capabilities:
        """Valid after `start`."""
        if self._capabilities is None:
            raise Unavailable("the backend has not started")
        return self._capabilities

    async def create(self, name: str, limits: Limits, network: str = "") -> LaunchedSandbox:
        """A fresh sandbox. Raises Exhausted, Rejected, Unavailable."""
        if network and network not in self.capabilities.network_modes:
            allowed = ", ".join(self.capabilities.network_modes)
            raise Rejected(
                f"this backend has no network {network!r}", field="network", hint=f"it has: {allowed}"
            )
        slot, begun = self._claim()
        try:
            return await self._create(slot, limits, begun)
        except BaseException:
            if slot not in self._live:
                self._free.append(slot)
            raise
        finally:
            self._stand_by()

    def _claim(self) -> tuple[int, socket.socket | None]:
        """A slot, with the process that stands by in it if there is one. Raises Exhausted."""
        if self._standby is not None and self._launcher is not None and self._launcher.alive:
            standby, self._standby = self._standby, None
            return standby
        self._dismiss()
        if not self._free:
            raise Exhausted(f"all {self._slots} sandboxes are taken", hint="retry when one is released")
        return self._free.pop(), None

    def _stand_by(self) -> None:
        """Have the launcher fork the next sandbox ahead, while this one works: who comes is told to it then."""
        if (
            not self.STANDS_BY
            or self._standby
            or not self._free
            or not (self._launcher and self._launcher.alive)
        ):
            return
        slot = self._free.pop()
        group = self._groups[slot] if self._groups else None
        try:
            request = {"slot": slot, "standby": True}
            control = self._launcher.create(request, group.join_descriptors() if group else [])
        except Unavailable:  # the next creation meets the same and says so
            self._free.append(slot)
        else:
            self._standby = (slot, control)

    def _dismiss(self) -> None:
        if self._standby is not None:
            slot, control = self._standby
            control.close()  # its end of file: it exits
            self._standby = None
            self._free.append(slot)

    async def _create(self, slot: int, limits: Limits, begun: socket.socket | None) -> LaunchedSandbox:
        def succeed() -> Place | None:
            place = self._successor(limits)
            if place is not None:
                slot, found = place
                self._live[slot] = sandbox
                return found
            return None

        place = self._told(slot, limits, begun) or await self._place(slot, limits)
        sandbox = LaunchedSandbox(
            place, self.SHARED, isolated=self.ISOLATED, snapshots=self._snapshots, succeed=succeed
        )
        self._live[slot] = sandbox
        try:
            await sandbox.ready()
        except BaseException:
            with contextlib.suppress(Unavailable):
                await sandbox.destroy()
            raise
        return sandbox

    def _successor(self, limits: Limits) -> tuple[int, Place] | None:
        """A slot where a standby was told that a sandbox begins anew; None if none stands by."""
        if self._standby is None:
            return None
        slot, begun = self._claim()
        asyncio.get_running_loop().call_soon(self._stand_by)
        place = self._told(slot, limits, begun)
        if place is None:
            self._free.append(slot)
            return None
        return slot, place

    def _told(self, slot: int, limits: Limits, standby: socket.socket | None) -> Place | None:
        """The place of a standby that was told who comes; None without one, or if it is dead (memory had run out)."""
        if standby is None:
            return None
        group, request = self._order(slot, limits)
        try:
            wire.send(standby, request)
        except OSError:
            standby.close()
            return None
        return self._as_place(slot, limits, standby, group, request)

    async def _place(self, slot: int, limits: Limits) -> Place:
        """A process in this slot, forked now. Raises Unavailable."""
        group, request = self._order(slot, limits)
        self._clear(slot)
        if self._launcher is None or not self._launcher.alive:
            await self._restart_launcher()
        assert self._launcher is not None
        control = self._launcher.create(request, group.join_descriptors() if group else [])
        return self._as_place(slot, limits, control, group, request)

    def _order(self, slot: int, limits: Limits) -> tuple[Group | None, dict[str, Any]]:
        group = self._groups[slot] if self._groups else None
        if group is not None:
            group.apply(limits)
        return group, {"slot": slot, **self._request(slot, limits)}

    def _as_place(
        self, slot: int, limits: Limits, control: socket.socket, group: Group | None, request: dict[str, Any]
    ) -> Place:
        return Place(
            control,
            request["owner"],
            group,
            again=lambda: self._place(slot, limits),
            give_back=lambda clean: self._give_back(slot, clean=clean),
        )

    async def fork(self, snapshot: str, names: Sequence[str], limits: Limits) -> list[Fork]:
        """One new sandbox per name with the files of a snapshot. Raises Rejected if it is not known."""
        self._snapshots.require(snapshot)
        if not 0 < len(names) <= MAX_FORK:
            raise Rejected(f"cannot fork {len(names)} at once", field="count", hint=f"1 to {MAX_FORK}")
        return list(
            await asyncio.gather(*(forked(self.create(name, limits), snapshot, name) for name in names))
        )

    async def forget(self, snapshot: str) -> None:
        """Drop a snapshot. Idempotent."""
        await asyncio.to_thread(self._snapshots.forget, snapshot)

    def _give_back(self, slot: int, *, clean: bool) -> None:
        """A slot whose processes would not die (uninterruptible in the kernel) is not used again."""
        if self._live.pop(slot, None) is not None and clean:
            self._clear(slot)
            self._free.append(slot)

    async def _restart_launcher(self) -> None:
        self._dismiss()
        if self._launcher is not None:
            self._launcher.close()
        self._launcher = self._make_launcher()
        await self._launcher.start()

    @abstractmethod
    def _make_launcher(self) -> Launcher:
        """A launcher, not yet started."""

    @abstractmethod
    def _request(self, slot: int, limits: Limits) -> dict[str, Any]:
        """What the far side needs to know to set up a sandbox in this slot."""

    def _clear(self, slot: int) -> None:
        """Called before and after each sandbox of a slot; a backend with files on the host removes them here."""
        del slot

    @property
    def _snapshot_home(self) -> Path:
        return self._state_dir / f"snapshots-{identity.instance()}"

    async def close(self) -> None:
        """Destroy every sandbox and end the launcher."""
        for sandbox in list(self._live.values()):
            await sandbox.destroy()
        self._dismiss()
        if self._launcher is not None:
            self._launcher.close()
            self._launcher = None
        self._snapshots.clear()


def rlimits(limits: Limits, *, with_memory: bool, with_pids: bool) -> Mapping[str, int]:
    """Per-process limits; the sum over processes is the control group's business, or nobody's."""
    values = {
        "RLIMIT_NOFILE": limits.open_files,
        "RLIMIT_FSIZE": limits.file_bytes,
        "RLIMIT_CORE": 0,
    }
    if with_memory:
        values["RLIMIT_AS"] = limits.memory_bytes
    if with_pids:
        values["RLIMIT_NPROC"] = limits.pids
    return values


def guest_basis(work: str) -> dict[str, Any]:
    """What every sandbox is told, whatever its backend; sent to the launcher once."""
    python = base_python()
    return {"search_path": list(python.search_path), "environment": guest_environment(python, work)}
