"""The connection to one sandbox's init: requests out, events in, and the news of its death."""

import asyncio
import contextlib
import os
import signal
import socket

from temper.runtime.errors import Unavailable
from temper.sandbox.engine.guest import wire
from temper.sandbox.engine.watch import ReportedMeter


class Link:
    """The connection to a sandbox's init and the news of its death."""

    def __init__(self, control: socket.socket, meter: ReportedMeter) -> None:
        self._loop = asyncio.get_running_loop()
        self._control = control
        self._pidfd = -1
        self._killed = False
        self._questions = 0
        self._meter = meter
        self._waiting: dict[object, asyncio.Future[wire.Message]] = {}
        self.died: asyncio.Future[None] = self._loop.create_future()
        """Done once every process of the sandbox is gone."""
        self.directories: list[int] = []
        """Descriptors of the shared directories, sent with "ready"."""
        self._loop.add_reader(self._control, self._on_event)

    @property
    def pidfd(self) -> int:
        """Process 1 of the sandbox; -1 before it is ready and after `close`."""
        return self._pidfd

    def send(self, message: wire.Message, descriptors: tuple[int, ...] = ()) -> None:
        """Tell init something; silently nothing if it is gone, since `died` says so."""
        with contextlib.suppress(OSError):
            wire.send(self._control, message, descriptors)

    def expect(self, key: object) -> asyncio.Future[wire.Message]:
        """The next event under this key: "ready", "killed", or the number of a command."""
        return self._waiting.setdefault(key, self._loop.create_future())

    async def ask(self, message: wire.Message, within_s: float) -> wire.Message:
        """Send a question and wait for its answer. Raises Unavailable if the sandbox is gone or silent."""
        self._questions += 1
        key = f"q{self._questions}"
        answer = self.expect(key)
        self.send({**message, "id": key})
        await asyncio.wait({answer, self.died}, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        self.forget(key)
        if not answer.done():
            raise Unavailable("the sandbox is gone" if self.died.done() else "the sandbox does not answer")
        return answer.result()

    def forget(self, key: object) -> None:
        """No longer wait for it."""
        self._waiting.pop(key, None)

    def _on_event(self) -> None:
        try:
            received = wire.receive(self._control)
        except (OSError, ValueError):
            received = None
        if received is None:
            self._loop.remove_reader(self._control)
            self._hung_up()
            return
        message, descriptors = received
        if message["event"] == "ready":
            self._pidfd, *self.directories = descriptors
            self._loop.add_reader(self._pidfd, self._on_death)
        elif message["event"] == "exited":
            self._meter.report(message)
        key = message.get("id", "ready" if message["event"] == "failed" else message["event"])
        waiting = self._waiting.pop(key, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(message)

    def _hung_up(self) -> None:
        """Init closed its end: it is dying, or never came to be (then there is no pidfd to wait for)."""
        if self._pidfd >= 0:
            self.kill()
        elif not self.died.done():
            self.died.set_result(None)

    def _on_death(self) -> None:
        self._loop.remove_reader(self._pidfd)
        if not self.died.done():
            self.died.set_result(None)

    def kill(self) -> None:
        """Kill init, and with it everything in its namespace."""
        if not self.died.done() and self._pidfd >= 0 and not self._killed:
            self._killed = True
            self._loop.remove_reader(self._control)  # its end of file is no news any more
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def close(self) -> None:
        """Free the descriptors. Only after death."""
        self._loop.remove_reader(self._control)
        self._control.close()
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
