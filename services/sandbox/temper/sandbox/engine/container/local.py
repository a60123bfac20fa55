"""A program of a container that a command of this host stands for: its streams are pipes of that command."""

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Final

from temper.runtime.errors import Unavailable
from temper.sandbox.engine.command import Stream

_CHUNK: Final = 1 << 16
_KILL_S: Final = 5.0


class LocalProgram:
    """See the module. Nothing is read ahead: what nobody has asked for waits in the pipe, and the program with it.

    Its end is the command's end, told by the kernel, whoever still holds the pipes.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._loop = asyncio.get_running_loop()
        self._process = process
        self._streams: dict[int, Stream] = {}
        for file, stream in ((process.stdout, Stream.STDOUT), (process.stderr, Stream.STDERR)):
            assert file is not None
            os.set_blocking(file.fileno(), False)
            self._streams[file.fileno()] = stream
        if process.stdin is not None:
            os.set_blocking(process.stdin.fileno(), False)
        self.ended: asyncio.Future[int | None] = self._loop.create_future()
        """Its exit status."""
        self._pidfd = os.pidfd_open(process.pid)
        self._loop.add_reader(self._pidfd, self._on_end)

    @staticmethod
    def begin(
        command: Sequence[str],
        *,
        stdin: bool,
        descriptors: Sequence[int] = (),
        env: Mapping[str, str] | None = None,
    ) -> "LocalProgram":
        """Start the command. Raises Unavailable."""
        try:
            process = subprocess.Popen(  # noqa: S603 - our own words
                command,
                stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                pass_fds=tuple(descriptors),
                env=env,
                start_new_session=True,
            )
        except OSError as error:
            raise Unavailable(f"cannot start {command[0]}: {error.strerror}") from error
        return LocalProgram(process)

    def _on_end(self) -> None:
        self._loop.remove_reader(self._pidfd)
        code = self._process.wait()
        if not self.ended.done():
            self.ended.set_result(code if code >= 0 else None)

    async def read(self) -> tuple[Stream, bytes] | None:
        """The next output."""
        while self._streams:
            for descriptor, stream in list(self._streams.items()):
                try:
                    data = os.read(descriptor, _CHUNK)
                except BlockingIOError:
                    continue
                if data:
                    return stream, data
                del self._streams[descriptor]
            if self._streams:
                await self._readable()
        return None

    async def _readable(self) -> None:
        ready: asyncio.Future[None] = self._loop.create_future()
        watched = list(self._streams)
        for descriptor in watched:
            self._loop.add_reader(descriptor, _settle, ready)
        try:
            await ready
        finally:
            for descriptor in watched:
                self._loop.remove_reader(descriptor)

    async def write(self, data: bytes) -> None:
        """Standard input."""
        assert self._process.stdin is not None
        view = memoryview(data)
        with contextlib.suppress(OSError):
            while view and not self._process.stdin.closed:
                try:
                    view = view[os.write(self._process.stdin.fileno(), view) :]
                except BlockingIOError:
                    await self._writable(self._process.stdin.fileno())

    async def _writable(self, descriptor: int) -> None:
        ready: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_writer(descriptor, _settle, ready)
        try:
            await ready
        finally:
            self._loop.remove_writer(descriptor)

    async def finish_input(self) -> None:
        """The end of its standard input."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    async def close(self) -> None:
        """Let go of the streams, and end the command that stands for the program."""
        self._streams = {}
        for file in (self._process.stdin, self._process.stdout, self._process.stderr):
            if file is not None:
                file.close()
        if self._process.poll() is None:
            self._process.kill()
            await asyncio.wait({self.ended}, timeout=_KILL_S)
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        if not self.ended.done():
            self.ended.set_result(self._process.wait() if self._process.returncode is not None else None)


def _settle(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def memory_file(name: str, content: bytes) -> int:
    """A descriptor of a file that exists in memory alone, to hand something over without showing it in argv."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
