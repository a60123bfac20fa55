"""The host's end of a sandbox's persistent Python: code goes in, an untrusted "ended" comes back."""

import asyncio
import os
import socket
from typing import Final

from temper.sandbox.engine.base import Limits
from temper.sandbox.engine.guest import wire
from temper.sandbox.engine.link import Link
from temper.sandbox.engine.output import PipeReader

INTERPRETER: Final = 0
"""Number under which init reports the interpreter's end; commands count from 1."""

_MAX_ANSWER: Final = 64 << 10
"""Bytes of one answer. An honest one is a short error text; the policy's code must not fill the host's memory here."""


class Interpreter:
    """The host's end of the persistent Python: its channel and its one output pipe."""

    def __init__(self, link: Link, limits: Limits) -> None:
        self._loop = asyncio.get_running_loop()
        self._channel, theirs = socket.socketpair()
        self._channel.setblocking(False)
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        self.output = PipeReader(read_end, limits.output_bytes, lambda: None)
        """Its standard output and error, in the order they were written."""
        self._decoder = wire.Decoder(_MAX_ANSWER)
        self._hung_up = False
        self.exited = link.expect(INTERPRETER)
        """Init's report of its end."""
        # Its children may hold the channel open long after its death, so the channel's end alone does not tell.
        self.exited.add_done_callback(lambda _: self._resolve(None))
        self._answer: asyncio.Future[str | None] = self._loop.create_future()
        self._number = 0
        self._sending: asyncio.Task[None] | None = None
        with theirs:
            link.send({"op": "interpreter", "id": INTERPRETER}, (theirs.fileno(), write_end))
        os.close(write_end)
        self._loop.add_reader(self._channel, self._on_readable)

    def ask(self, code: str) -> "asyncio.Future[str | None]":
        """Send code. The future gives the error text, "" for none, or None if the interpreter went away."""
        self._number += 1
        self._answer = self._loop.create_future()
        if self._hung_up or self.exited.done():
            self._resolve(None)
            return self._answer
        frame = wire.encode({"id": self._number, "code": code})
        try:
            sent = self._channel.send(frame)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._resolve(None)
            return self._answer
        if sent < len(frame):
            self._sending = self._loop.create_task(self._send(frame[sent:]))
        return self._answer

    async def _send(self, rest: bytes) -> None:
        try:
            await self._loop.sock_sendall(self._channel, rest)
        except OSError:
            self._resolve(None)

    def _on_readable(self) -> None:
        """Untrusted: anything but a well-formed answer to the present question ends the conversation."""
        try:
            data = self._channel.recv(1 << 16)
            messages = self._decoder.feed(data) if data else None
        except BlockingIOError:
            return
        except (OSError, ValueError):
            messages = None
        if messages is None or not all(self._take(message) for message in messages):
            self._loop.remove_reader(self._channel)
            self._hung_up = True
            self._resolve(None)

    def _take(self, message: wire.Message) -> bool:
        """Whether it answered the question that is open; who talks without being asked is not listened to again."""
        error = message.get("error")
        if self._answer.done() or message.get("id") != self._number or not isinstance(error, str | None):
            return False
        self._resolve((error or "")[:4096])
        return True

    def _resolve(self, answer: str | None) -> None:
        if not self._answer.done():
            self._answer.set_result(answer)

    def close(self) -> None:
        """Hang up; the interpreter ends at the end of its input."""
        self._loop.remove_reader(self._channel)
        if self._sending is not None:
            self._sending.cancel()
        self._resolve(None)
        self._channel.close()
        self.output.close()
