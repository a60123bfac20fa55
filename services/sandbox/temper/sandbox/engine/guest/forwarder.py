"""The door of a container whose network has no way out: listens on its loopback, and hands every connection to the host.

Requests come on standard input, events go out on standard output. Each direction of a connection has credit: who does not read holds
back who writes, and no other connection.
"""

import base64
import contextlib
import os
import select
import socket
from typing import Any, Final

from temper.sandbox.engine.guest import syscalls, wire

CREDIT: Final = 64 << 10
"""Bytes of one direction of a connection that may be on their way."""
MOST: Final = 64
"""Connections at once; more wait to be accepted."""
_CHUNK: Final = 16 << 10


def main() -> None:
    """Serve until the host hangs up."""
    syscalls.set_dumpable(dumpable=False)
    with contextlib.suppress(OSError, ValueError):  # the host is gone or speaks nonsense
        _Forwarder().run()
    os._exit(0)


class _Connection:
    """One connection. `pending` waits to be written to it; `None` after that: its writing side is to be shut."""

    def __init__(self, own: socket.socket) -> None:
        self.own = own
        self.credit = CREDIT
        self.pending = b""
        self.reading = True
        self.ending = False
        self.ended = False


class _Forwarder:
    def __init__(self) -> None:
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._open: dict[int, _Connection] = {}
        self._numbers = 0
        self._decoder = wire.Decoder()

    def run(self) -> None:
        """The loop."""
        while True:
            readable, writable, _ = select.select(self._to_read(), self._to_write(), [])
            for number, each in list(self._open.items()):
                if each.own in writable:
                    self._write(number, each)
                if each.own in readable and number in self._open:
                    self._read(number, each)
            if self._listener in readable:
                self._accept()
            if 0 in readable and not self._serve():
                return

    def _to_read(self) -> list[Any]:
        wanted: list[Any] = [each.own for each in self._open.values() if each.reading and each.credit > 0]
        accepting = self._listener.getsockname()[1] != 0 and len(self._open) < MOST
        return [0, *wanted, *([self._listener] if accepting else [])]

    def _to_write(self) -> list[Any]:
        return [each.own for each in self._open.values() if each.pending]

    def _serve(self) -> bool:
        data = os.read(0, 1 << 16)
        for request in self._decoder.feed(data):
            self._obey(request)
        return bool(data)

    def _obey(self, request: wire.Message) -> None:
        if request["op"] == "begin":
            self._begin(request["port"])
            return
        number = request["id"]
        each = self._open.get(number)
        if each is None:
            return
        if request["op"] == "data":
            each.pending += base64.b64decode(request["data"])
        elif request["op"] == "took":
            each.credit += request["bytes"]
        elif request["op"] == "ended":
            each.ending = True
            self._shut(number, each)
        else:
            self._close(number, each)

    def _begin(self, port: int) -> None:
        try:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listener.bind(("127.0.0.1", port))
            self._listener.listen(MOST)
            self._listener.setblocking(False)
        except OSError as error:
            _say({"event": "refused", "error": error.strerror})
            raise
        _say({"event": "ready", "pid": os.getpid()})

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            own, _ = self._listener.accept()
            own.setblocking(False)
            self._numbers += 1
            self._open[self._numbers] = _Connection(own)
            _say({"event": "opened", "id": self._numbers})

    def _read(self, number: int, each: _Connection) -> None:
        try:
            data = each.own.recv(min(_CHUNK, each.credit))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            each.credit -= len(data)
            _say({"event": "data", "id": number, "data": base64.b64encode(data).decode()})
            return
        each.reading = False
        _say({"event": "ended", "id": number})
        self._shut(number, each)

    def _write(self, number: int, each: _Connection) -> None:
        try:
            written = each.own.send(each.pending)
        except BlockingIOError:
            return
        except OSError:
            self._close(number, each)
            return
        each.pending = each.pending[written:]
        _say({"event": "took", "id": number, "bytes": written})
        self._shut(number, each)

    def _shut(self, number: int, each: _Connection) -> None:
        """Once all is written, pass the end of one direction on; after both, it is over."""
        if each.ending and not each.pending and not each.ended:
            each.ended = True
            with contextlib.suppress(OSError):
                each.own.shutdown(socket.SHUT_WR)
        if each.ended and not each.reading:
            self._close(number, each)

    def _close(self, number: int, each: _Connection) -> None:
        each.own.close()
        del self._open[number]
        _say({"event": "closed", "id": number})


def _say(message: dict[str, Any]) -> None:
    frame = wire.encode(message)
    while frame:
        frame = frame[os.write(1, frame) :]
