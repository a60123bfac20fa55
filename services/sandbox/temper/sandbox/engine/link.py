"""The connection to one sandbox's init: requests out, events in, and the news of its death."""

import array
import asyncio
import contextlib
import os
import signal
import socket
from collections import deque
from collections.abc import Iterable
from typing import Final

from temper.runtime.errors import Unavailable
from temper.sandbox.engine.guest import wire
from temper.sandbox.engine.watch import ReportedMeter

_PIECE: Final = 1 << 16
_STUCK_S: Final = 2.0
"""Seconds that a process has to take something out of a full line."""


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
        self._decoder = wire.Decoder()
        self._descriptors: list[int] = []
        self._outbox: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._stuck: asyncio.TimerHandle | None = None
        self._loop.add_reader(self._control, self._on_event)

    @property
    def pidfd(self) -> int:
        """Process 1 of the sandbox; -1 before it is ready and after `close`."""
        return self._pidfd

    def send(self, message: wire.Message, descriptors: tuple[int, ...] = ()) -> None:
        """Tell init something; silently nothing if it is gone, since `died` says so.

        Never waits: what does not fit the line follows as it empties, and who takes nothing for a while is killed.
        """
        frame = wire.encode(message)
        if not self._outbox:
            try:
                frame, descriptors = self._push(frame, descriptors)
            except OSError:  # a frame may be half sent: nothing more can be said on this line
                self.kill()
                return
            if not frame:
                return
            self._loop.add_writer(self._control, self._on_room)
            self._stuck = self._loop.call_later(_STUCK_S, self._give_up)
        self._outbox.append((frame, tuple(os.dup(each) for each in descriptors)))

    def _push(self, frame: bytes, descriptors: tuple[int, ...]) -> tuple[bytes, tuple[int, ...]]:
        """Send what fits; returns what is left. Descriptors go with the first byte."""
        rights = (
            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        )
        with contextlib.suppress(BlockingIOError):
            while frame:
                frame = frame[self._control.sendmsg([frame], rights, socket.MSG_DONTWAIT) :]
                rights, descriptors = [], ()
        return frame, descriptors

    def _on_room(self) -> None:
        """The line has emptied a little."""
        try:
            while self._outbox:
                frame, descriptors = self._outbox[0]
                rest, left = self._push(frame, descriptors)
                if rest != frame and self._stuck is not None:
                    self._stuck.cancel()
                    self._stuck = self._loop.call_later(_STUCK_S, self._give_up)
                self._outbox[0] = (rest, left)
                if not left:
                    _close(descriptors)
                if rest:
                    return
                self._outbox.popleft()
        except OSError:
            self.kill()
        self._say_no_more()

    def _give_up(self) -> None:
        """It takes nothing: nobody waits for it any longer. Without a pidfd yet, the end of the line is all it can get."""
        self._say_no_more()
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        self.kill()

    def _say_no_more(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None
            self._loop.remove_writer(self._control)
        while self._outbox:
            _close(self._outbox.popleft()[1])

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
        """Take what is there and no more: whoever is on the other side may stop in the middle of a message."""
        try:
            messages = self._receive()
        except BlockingIOError:
            return
        except (OSError, ValueError):
            messages = None
        if messages is None:
            self._loop.remove_reader(self._control)
            self._hung_up()
            return
        for message in messages:
            self._hear(message)

    def _receive(self) -> list[wire.Message] | None:
        """Messages that are complete; None at the end of the line. Descriptors wait for the message they came with."""
        space = socket.CMSG_SPACE(wire.MAX_DESCRIPTORS * array.array("i").itemsize)
        flags = socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
        data, ancillary, _, _ = self._control.recvmsg(_PIECE, space, flags)
        self._descriptors += wire.descriptors(ancillary)
        return self._decoder.feed(data) if data else None

    def _hear(self, message: wire.Message) -> None:
        if message["event"] == "ready":
            self._pidfd, *self.directories = self._descriptors
            self._descriptors = []
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
        self._say_no_more()
        self._loop.remove_reader(self._control)
        self._control.close()
        _close(self._descriptors)
        self._descriptors = []
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1


def _close(descriptors: Iterable[int]) -> None:
    for each in descriptors:
        os.close(each)
