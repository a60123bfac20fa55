"""One container of `runsc`. Its writable trees are sized file systems of this host, so they are reached from outside."""

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from temper.runtime.errors import Unavailable
from temper.sandbox.engine.command import Limits
from temper.sandbox.engine.container import processes
from temper.sandbox.engine.container.local import LocalProgram, memory_file
from temper.sandbox.engine.discard import discard
from temper.sandbox.engine.files import Files
from temper.sandbox.engine.groups import Group
from temper.sandbox.engine.guest import syscalls, wire
from temper.sandbox.engine.guest.keeper import MARKS
from temper.sandbox.engine.gvisor import bundle
from temper.sandbox.engine.watch import Meter, ReportedMeter

_READY_S: Final = 30.0
_KILL_S: Final = 10.0
_TELL_S: Final = 30.0
_QUIET: Final = syscalls.MS_NOSUID | syscalls.MS_NODEV


class Runsc:
    """The command line of one installation. Source: `runsc help` and `runsc flags`."""

    def __init__(self, program: str, platform: str) -> None:
        self._program = program
        self._flags = ["--network", "none", "--ignore-cgroups"]
        if platform:
            self._flags += ["--platform", platform]

    def words(self, state: Path, command: str, *words: str) -> list[str]:
        """A whole command line for the container whose state lies in that directory."""
        return [self._program, "--root", str(state), *self._flags, command, *words]


class GvisorContainer:
    """See the module. `place` is a directory of this container alone."""

    def __init__(
        self,
        runsc: Runsc,
        name: str,
        place: Path,
        uid: int,
        group: Group | None,
        python: Sequence[str],
        environment: Mapping[str, str],
    ) -> None:
        self._runsc = runsc
        self._name = name
        self._place = place
        self._uid = uid
        self._control: socket.socket | None = None
        self._pidfd = -1
        self._said = b""
        self._ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._removed = False
        self._started = 0
        self._group = group
        self.meter: Meter = group or ReportedMeter()
        """The slot's control group: the container's own kernel is in it."""
        self.python = python
        self.environment = environment
        self.files: Files | None = None
        """Its trees."""
        self.network = -1
        """Its network is its own kernel's."""
        self.died: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once every process of it, on the host, is gone."""

    @property
    def trees(self) -> Mapping[str, Path]:
        """Where the writable trees lie on the host."""
        return {tree: self._place / tree[1:] for tree in bundle.TREES}

    def mount_trees(self, limits: Limits) -> None:
        """Make the writable trees. Raises Unavailable."""
        handles: dict[str, int] = {}
        for tree, path in self.trees.items():
            path.mkdir(parents=True, mode=0o700, exist_ok=True)
            mode = "700" if tree == bundle.TREES[0] else "1777"
            options = f"size={limits.disk_bytes},nr_inodes={limits.inodes},mode={mode},uid={self._uid},gid={self._uid}"
            try:
                syscalls.mount("tmpfs", str(path), "tmpfs", _QUIET, options)
            except OSError as error:
                raise Unavailable(f"cannot make {tree} of a sandbox: {error}") from error
            handles[tree] = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self.files = Files(handles, self._uid, sized=True)

    def words(self, command: str, *words: str) -> list[str]:
        """A command line of `runsc` about this container."""
        return self._runsc.words(self._place / "state", command, *words)

    async def attend(self, control: socket.socket) -> None:
        """Wait until its first process speaks; from then on the socket's end is its death. Raises Unavailable."""
        self._control = control
        asyncio.get_running_loop().add_reader(control, self._on_control)
        await asyncio.wait({self._ready}, timeout=_READY_S)
        if not self._ready.done() or self._ready.result():
            said = self._ready.result() if self._ready.done() else "nothing"
            raise Unavailable(f"runsc made no sandbox; it said: {said}")

    def _on_control(self) -> None:
        assert self._control is not None
        try:
            if self._pidfd < 0:
                self._begun(*(wire.receive(self._control) or ({}, [])))
                return
            data = self._control.recv(4096)
        except (OSError, ValueError):
            data = b""
        if not self._ready.done():
            self._said += data
            if b"ready\n" in self._said or not data:
                self._ready.set_result(
                    "" if data else self._said.decode(errors="replace")[-400:] or "nothing"
                )
        if not data:
            asyncio.get_running_loop().remove_reader(self._control)
            if not self.died.done():
                self.died.set_result(None)

    def _begun(self, message: wire.Message, descriptors: list[int]) -> None:
        """The launcher's child has told who it is, or why it could not become the program."""
        if descriptors:
            self._pidfd = descriptors[0]
            return
        assert self._control is not None
        asyncio.get_running_loop().remove_reader(self._control)
        self._ready.set_result(str(message.get("error", "the launcher died")))
        self.died.set_result(None)

    async def start(self, argv: Sequence[str], env: Mapping[str, str], *, stdin: bool) -> LocalProgram:
        """Start a program as the agent, in a group of its own. What it is told lies in a memory file. Raises Unavailable."""
        if self.died.done():
            raise Unavailable("the container is gone")
        self._started += 1
        told = bundle.process(argv, env, uid=self._uid, cwd="/work", groups=[MARKS + self._started])
        descriptor = memory_file("process", json.dumps(told).encode())
        words = self.words("exec", "--process", f"/proc/self/fd/{descriptor}", self._name)
        try:
            return LocalProgram.begin(words, stdin=stdin, descriptors=(descriptor,))
        finally:
            os.close(descriptor)

    async def sweep(self, number: int, spared: frozenset[int] = frozenset()) -> None:
        """Signal every process of the agent but `spared` and what is below. Raises Unavailable."""
        await processes.sweep(self, number, spared)

    async def pause(self) -> None:
        """Hold its kernel's programs still. Raises Unavailable."""
        await self._tell("pause")

    async def resume(self) -> None:
        """Let them go on. Raises Unavailable."""
        await self._tell("resume")

    async def _tell(self, command: str) -> None:
        program = LocalProgram.begin(self.words(command, self._name), stdin=False)
        said = b""
        try:
            async with asyncio.timeout(_TELL_S):
                while (got := await program.read()) is not None:
                    said += got[1]
                status = await program.ended
        except TimeoutError:
            status = None
        finally:
            await program.close()
        if status != 0:
            raise Unavailable(f"runsc {command} failed: {said.decode(errors='replace')[-400:].strip()}")

    async def remove(self) -> None:
        """End it, and give back the host's file systems. Idempotent. Raises Unavailable."""
        if self._removed:
            return
        self._removed = True
        if self.files is not None:
            self.files.close()
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(
                    self._pidfd, signal.SIGKILL
                )  # its kernel and file server die with it
            with self._group.unthrottled() if self._group is not None else contextlib.nullcontext():
                await asyncio.wait({self.died}, timeout=_KILL_S)
            os.close(self._pidfd)
        if self._control is not None:
            asyncio.get_running_loop().remove_reader(self._control)
            self._control.close()
        for path in self.trees.values():
            with contextlib.suppress(OSError):
                syscalls.detach(str(path))
        discard(self._place)
        if self._pidfd >= 0 and not self.died.done():
            raise Unavailable("the container would not die")
        if not self.died.done():
            self.died.set_result(None)
