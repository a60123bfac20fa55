"""The door of a container whose network is not this host's kernel's: a forwarder inside, and a socket out here that gets its connections.

Whoever asked for the door serves on that socket; closing it closes the door. It has no name that anybody else could connect to.
"""

import asyncio
import base64
import os
import shutil
import socket
import tempfile
from collections.abc import Callable
from typing import Final

from temper.runtime.errors import Unavailable
from temper.sandbox.engine.container import boot
from temper.sandbox.engine.container.line import Line
from temper.sandbox.engine.container.seam import Container
from temper.sandbox.engine.guest import forwarder, wire

_MODULES: Final = ("wire", "syscalls", "forwarder")
_START_S: Final = 30.0
_CHUNK: Final = 16 << 10


class Door:
    """See the module."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._begun: asyncio.Future[wire.Message] = asyncio.get_running_loop().create_future()
        self._open: dict[int, _Passage] = {}
        self._name = -1
        self.shut = False
        """Whether nobody serves any more."""
        self.pid = 0
        """The forwarder, as the container numbers it."""
        line.listen(self._hear)

    @staticmethod
    async def open(container: Container, port: int) -> "tuple[Door, socket.socket]":
        """Start the forwarder; the door, and the socket that listens. Raises Unavailable."""
        line = Line(await boot.start(container, "-I"), boot.sources(_MODULES))
        door = Door(line)
        try:
            await door._begin(port)
            return door, door._listener()
        except BaseException:
            await door.close()
            raise

    async def _begin(self, port: int) -> None:
        self._line.send({"op": "begin", "port": port})
        awaited = {self._begun, self._line.lost}
        await asyncio.wait(awaited, timeout=_START_S, return_when=asyncio.FIRST_COMPLETED)
        begun = (
            self._begun.result() if self._begun.done() else {"event": "lost", "error": self._line.complaint}
        )
        if begun["event"] != "ready":
            raise Unavailable(f"cannot open a door into the sandbox's network: {begun.get('error')}")
        self.pid = int(begun["pid"])

    def _listener(self) -> socket.socket:
        """A socket whose name is gone before anybody could use it; we reach it through the descriptor of its file."""
        directory = tempfile.mkdtemp(prefix="temper-door-")
        try:
            listener = _Listener(self._on_shut)
            listener.bind(f"{directory}/door")
            self._name = os.open(f"{directory}/door", os.O_PATH | os.O_CLOEXEC)
        finally:
            shutil.rmtree(directory)
        listener.listen(forwarder.MOST)
        return listener

    def _on_shut(self) -> None:
        self.shut = True

    @property
    def lost(self) -> bool:
        """Whether the forwarder is gone."""
        return self._line.lost.done()

    def _hear(self, event: wire.Message) -> None:
        if event["event"] in {"ready", "refused"}:
            if not self._begun.done():
                self._begun.set_result(event)
            return
        number = int(event["id"])
        if event["event"] == "opened":
            if number in self._open or len(self._open) >= forwarder.MOST:
                raise ValueError(number)
            self._open[number] = _Passage(self._line, number, f"/proc/self/fd/{self._name}")
        elif number in self._open:
            self._open[number].hear(event)
            if event["event"] == "closed":
                self._open.pop(number).close()

    async def close(self) -> None:
        """End the forwarder and every connection. Idempotent."""
        passages, self._open = list(self._open.values()), {}
        for each in passages:
            each.close()
        await asyncio.gather(*(each.tasks for each in passages), return_exceptions=True)
        await self._line.closed()
        if self._name >= 0:
            os.close(self._name)
            self._name = -1


class _Listener(socket.socket):
    """A listening socket that tells when it is closed."""

    def __init__(self, on_close: Callable[[], None]) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM)
        self._on_close = on_close

    def close(self) -> None:
        super().close()
        self._on_close()


class _Passage:
    """One connection, from the forwarder to whoever serves."""

    def __init__(self, line: Line, number: int, path: str) -> None:
        self._line = line
        self._number = number
        self._path = path
        self._incoming: asyncio.Queue[bytes] = asyncio.Queue()
        self._waiting = 0
        self._credit = forwarder.CREDIT
        self._more = asyncio.Event()
        self.tasks = asyncio.ensure_future(self._serve())
        """Done once it is over."""

    def hear(self, event: wire.Message) -> None:
        """An event of this connection. Raises ValueError for what a forwarder would not say."""
        match event["event"]:
            case "data":
                data = base64.b64decode(event["data"], validate=True)
                self._waiting += len(data)
                if not data or self._waiting > forwarder.CREDIT:
                    raise ValueError("more than there was credit for")
                self._incoming.put_nowait(data)
            case "ended":
                self._incoming.put_nowait(b"")
            case "took":
                self._credit += int(event["bytes"])
                self._more.set()
            case "closed":
                pass
            case other:
                raise ValueError(other)

    async def _serve(self) -> None:
        try:
            reader, writer = await asyncio.open_unix_connection(self._path)
        except OSError:
            self._say("close")
            return
        back = asyncio.create_task(self._bring_back(reader))
        try:
            await self._pass_on(writer)
            await back
        except OSError:
            self._say("close")
        finally:
            back.cancel()
            writer.close()

    async def _pass_on(self, writer: asyncio.StreamWriter) -> None:
        while data := await self._incoming.get():
            writer.write(data)
            await writer.drain()
            self._waiting -= len(data)
            self._line.send({"op": "took", "id": self._number, "bytes": len(data)})
        if writer.can_write_eof():
            writer.write_eof()

    async def _bring_back(self, reader: asyncio.StreamReader) -> None:
        while True:
            while self._credit <= 0:
                self._more.clear()
                await self._more.wait()
            try:
                data = await reader.read(min(_CHUNK, self._credit))
            except OSError:
                data = b""
            if not data:
                self._say("ended")
                return
            self._credit -= len(data)
            text = base64.b64encode(data).decode()
            self._line.send({"op": "data", "id": self._number, "data": text})

    def _say(self, what: str) -> None:
        self._line.send({"op": what, "id": self._number})

    def close(self) -> None:
        """Hang up. Idempotent."""
        self.tasks.cancel()
