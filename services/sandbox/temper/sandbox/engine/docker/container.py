"""One container of a Docker engine.

Its first process is the engine's init with a `cat` that reads from a connection of this service: when the connection ends the
container ends, and the engine removes it. Both are root without a capability, so that nothing of the agent, which has another
uid, can signal them. Where the engine runs on this host and shares its kernel, processes are counted and swept and files reached
from outside; otherwise by programs inside.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from temper.runtime.errors import Unavailable
from temper.sandbox.engine import cgroups
from temper.sandbox.engine.container import processes
from temper.sandbox.engine.container.meters import LastingMeter
from temper.sandbox.engine.docker import census
from temper.sandbox.engine.docker.client import MISSING, Client, Execution
from temper.sandbox.engine.files import Files
from temper.sandbox.engine.groups import GroupV1, GroupV2
from temper.sandbox.engine.watch import Meter, ReportedMeter

TREES: Final = ("/work", "/tmp")  # noqa: S108 - the sandbox's own
_PLACE: Final = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_SWEEP_S: Final = 10.0
_SWEEP_POLL_S: Final = 0.005
_DEATH_POLL_S: Final = 1.0
# The engine puts its own name for the container into a variable. Whoever has no login uid may choose one, and so sign the kernel's
# audit records as somebody else: it is settled here, once and for all that comes after.
_START: Final = 'unset HOSTNAME; { echo "$1" > /proc/self/loginuid; } 2>/dev/null; shift; exec "$@"'


class DockerContainer:
    """See the module. `uid` is the agent's."""

    def __init__(
        self,
        client: Client,
        name: str,
        uid: int,
        python: Sequence[str],
        environment: Mapping[str, str],
    ) -> None:
        self._client = client
        self._name = name
        self._uid = uid
        self._hold: asyncio.StreamWriter | None = None
        self._members: Path | None = None
        self._group: GroupV1 | GroupV2 | None = None
        self._pidfd = -1
        self._polling: asyncio.Task[None] | None = None
        self.python = python
        self.environment = environment
        self.died: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once it no longer runs."""
        self.meter: Meter = ReportedMeter()
        """The container's control group, where it can be seen."""
        self.files: Files | None = None
        """Its trees, where they can be seen."""
        self.network = -1
        """Its first process, where this host's kernel has its network."""

    async def begin(self, *, kernel_shared: bool) -> None:
        """Start it and find out what can be reached from here. Raises Unavailable."""
        query = f"/containers/{self._name}/attach?stream=1&stdin=1"
        _, self._hold = await self._client.attach(query, None)
        await self._client.call(self._client.api.start, self._name)
        told = await self._client.call(self._client.api.inspect_container, self._name)
        pid = int(told["State"]["Pid"])
        if not self._is_here(pid, str(told["Id"])):
            self._polling = asyncio.create_task(self._poll())
            return
        self._pidfd = os.pidfd_open(pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._on_death)
        self._find_group(pid)
        if kernel_shared:
            top = Path(f"/proc/{pid}/root")
            handles = {tree: os.open(top / tree[1:], _PLACE) for tree in TREES}
            shared = os.open(top / "dev/shm", _PLACE)
            self.files = Files(handles, self._uid, sized=True, beside=[shared])
            self.network = self._pidfd
        else:
            self._members = None  # its processes are known to its own kernel alone

    @staticmethod
    def _is_here(pid: int, identity: str) -> bool:
        """Whether the engine's pid is that of this host: then its control group names the container."""
        try:
            return identity in Path(f"/proc/{pid}/cgroup").read_text()
        except OSError:
            return False

    def _find_group(self, pid: int) -> None:
        layout = cgroups.detect(own=Path(f"/proc/{pid}/cgroup").read_text())
        if layout.mode is cgroups.Mode.V1:
            self._group = GroupV1(layout.parents)
            self._members = layout.parents["pids"] / "cgroup.procs"
        elif layout.mode is cgroups.Mode.V2:
            self._group = GroupV2(layout.parents["unified"])
            self._members = layout.parents["unified"] / "cgroup.procs"
        if self._group is not None:
            self.meter = LastingMeter(self._group)

    def _on_death(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        if not self.died.done():
            self.died.set_result(None)

    async def _poll(self) -> None:
        """An engine elsewhere has to be asked."""
        running = True
        while running:
            await asyncio.sleep(_DEATH_POLL_S)
            try:
                told = await self._client.call(self._client.api.inspect_container, self._name)
                running = bool(told["State"]["Running"])
            except MISSING:
                running = False
            except Unavailable:
                continue
        if not self.died.done():
            self.died.set_result(None)

    async def start(self, argv: Sequence[str], env: Mapping[str, str], *, stdin: bool) -> Execution:
        """Start a program as the agent. Raises Unavailable."""
        try:
            made: dict[str, Any] = await self._client.call(
                self._client.api.exec_create,
                self._name,
                ["/bin/sh", "-c", _START, "start", str(self._uid), *argv],
                stdin=stdin,
                user=f"{self._uid}:{self._uid}",
                workdir="/work",
                environment=dict(env),
            )
        except MISSING as error:
            raise Unavailable("the container is gone") from error
        reader, writer = await self._client.attach(
            f"/exec/{made['Id']}/start", {"Detach": False, "Tty": False}
        )
        return Execution(self._client, made["Id"], reader, writer)

    async def sweep(self, number: int, spared: frozenset[int] = frozenset()) -> None:
        """Signal every process of the agent but `spared` and what is below; after KILL, wait until they are gone. Raises Unavailable."""
        if self._members is None:
            await processes.sweep(self, number, spared)
            return
        self._signal_all(number, spared)
        if number != signal.SIGKILL or not self._agents(spared):
            return
        # What forks faster than it is killed is held still first.
        with contextlib.suppress(Unavailable, MISSING):
            await self.pause()
        self._signal_all(number, spared)
        with contextlib.suppress(Unavailable, MISSING):
            await self.resume()
        await self._until_swept(spared)

    async def pause(self) -> None:
        """Hold every process still. Raises Unavailable."""
        await self._client.call(self._client.api.pause, self._name)

    async def resume(self) -> None:
        """Let them go on. Raises Unavailable."""
        await self._client.call(self._client.api.unpause, self._name)

    async def _until_swept(self, spared: frozenset[int]) -> None:
        try:
            with self._unthrottled():
                async with asyncio.timeout(_SWEEP_S):
                    while self._agents(spared) and not self.died.done():
                        self._signal_all(signal.SIGKILL, spared)
                        await asyncio.sleep(_SWEEP_POLL_S)
        except TimeoutError:
            raise Unavailable("processes of the container would not die") from None

    def _unthrottled(self) -> contextlib.AbstractContextManager[None]:
        return self._group.unthrottled() if self._group is not None else contextlib.nullcontext()

    def _agents(self, spared: frozenset[int]) -> list[int]:
        """Pids, on this host, of the processes with the agent's uid; the dead that wait for their parent left out."""
        assert self._members is not None
        try:
            members = self._members.read_text().split()
        except OSError:
            return []
        return census.agents(members, self._uid, spared)

    def _signal_all(self, number: int, spared: frozenset[int]) -> None:
        for pid in self._agents(spared):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    async def remove(self) -> None:
        """End and remove it. Idempotent. Raises Unavailable."""
        if self._polling is not None:
            self._polling.cancel()
        if self.files is not None:
            self.files.close()
        with contextlib.suppress(MISSING), self._unthrottled():
            await self._client.call(self._client.api.remove_container, self._name, force=True, v=True)
        if self._pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        if self._group is not None:
            self._group.close()
            self._group = None
        if not self.died.done():
            self.died.set_result(None)
        if self._hold is not None:
            self._hold.close()
            with contextlib.suppress(OSError):
                await self._hold.wait_closed()
            self._hold = None
