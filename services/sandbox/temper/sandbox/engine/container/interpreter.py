"""The persistent Python of a container: code goes to its standard input, an untrusted "ended" comes back."""

import asyncio
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final

from temper.sandbox.engine.command import Limits, Stream
from temper.sandbox.engine.container import boot
from temper.sandbox.engine.container.seam import Container, Program
from temper.sandbox.engine.guest import wire
from temper.sandbox.engine.output import CappedBuffer

_MODULES: Final = ("wire", "interpreter", "streamed")
_LAST_WORDS_S: Final = 0.2
"""How long a dead interpreter's last answer may still be on its way."""
_MARK_S: Final = 2.0
"""Longest wait for output that an answer has overtaken."""


class Interpreter:
    """One interpreter process in a container."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._decoder = wire.Decoder()
        self._answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._marked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._mark = b""
        self._held = b""
        self._number = 0
        self._on_flood: Callable[[], None] = lambda: None
        self._flood = 0
        self.buffer = CappedBuffer(0)
        """What the present code has said."""
        self.pid = 0
        """As the container numbers it and the process itself says: for a signal inside, nothing else."""
        self.gone = False
        """Whether it hung up."""
        self._reading = asyncio.create_task(self._read())
        # Its children may hold its pipes open long after its death, so their end alone does not tell.
        program.ended.add_done_callback(lambda _: self._died())
        self._sending: set[asyncio.Task[None]] = set()

    @staticmethod
    async def begin(container: Container) -> "Interpreter":
        """Start one. Raises Unavailable."""
        interpreter = Interpreter(await boot.start(container))
        interpreter._send(boot.sources(_MODULES))
        return interpreter

    def _send(self, data: bytes) -> None:
        task = asyncio.create_task(self._program.write(data))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    def ask(
        self, code: str, limits: Limits, flood: int, on_flood: Callable[[], None]
    ) -> "asyncio.Future[Any]":
        """Send code. The future gives the error text, "" for none, or None if the interpreter went away."""
        loop = asyncio.get_running_loop()
        self._number += 1
        self._answer, self._marked = loop.create_future(), loop.create_future()
        mark = f"\0{secrets.token_hex(16)}\n"
        self._mark, self._held = mark.encode(), b""
        self.buffer, self._flood, self._on_flood = CappedBuffer(limits.output_bytes), flood, on_flood
        if self.gone:
            self._resolve(None)
        self._send(wire.encode({"id": self._number, "code": code, "mark": mark}))
        return self._answer

    async def settle(self) -> None:
        """Wait for the output that belongs to the answer, and keep what came."""
        await asyncio.wait({self._marked}, timeout=_MARK_S if not self.gone else 0)
        self.buffer.write(self._held)
        self._held = b""

    def _died(self) -> None:
        asyncio.get_running_loop().call_later(_LAST_WORDS_S, self._hang_up)

    def _hang_up(self) -> None:
        self.gone = True
        self._resolve(None)

    async def _read(self) -> None:
        while (got := await self._program.read()) is not None:
            stream, data = got
            if stream is Stream.STDOUT:
                self._said(data)
            elif not self._told(data):
                break
        self._hang_up()

    def _said(self, data: bytes) -> None:
        """Output up to the mark; what could be the mark's beginning is held back."""
        text = self._held + data
        before, mark, after = text.partition(self._mark) if self._mark else (text, b"", b"")
        if mark:
            self.buffer.write(before)
            self._mark, self._held = b"", after
            if not self._marked.done():
                self._marked.set_result(None)
            return
        keep = next((n for n in range(len(self._mark) - 1, 0, -1) if text.endswith(self._mark[:n])), 0)
        self._held = text[len(text) - keep :] if keep else b""
        self.buffer.write(text[: len(text) - keep])
        if self.buffer.total > self._flood > 0:
            self._on_flood()

    def _told(self, data: bytes) -> bool:
        """Untrusted: anything but a well-formed answer to the present question ends the conversation."""
        try:
            messages = self._decoder.feed(data)
        except ValueError:
            return False
        for message in messages:
            self._take(message)
        return True

    def _take(self, message: Mapping[str, Any]) -> None:
        pid, error = message.get("pid"), message.get("error")
        if self.pid == 0 and isinstance(pid, int) and pid > 1:
            self.pid = pid
        elif message.get("id") == self._number and (error is None or isinstance(error, str)):
            self._resolve((error or "")[:4096])

    def _resolve(self, answer: str | None) -> None:
        if not self._answer.done():
            self._answer.set_result(answer)

    async def close(self) -> None:
        """Hang up; the interpreter ends at the end of its input."""
        self._reading.cancel()
        for task in self._sending:
            task.cancel()
        self.gone = True
        self._resolve(None)
        await self._program.close()
