"""Output of a command under a byte cap, kept while it streams: memory stays flat whatever the command writes."""

import asyncio
import os
from collections import deque
from collections.abc import Callable
from typing import Final

_CHUNK: Final = 1 << 16
_FLOOD_CAPS: Final = (
    16  # a command that writes this many caps, and this many bytes, will not say anything more
)
_FLOOD_BYTES: Final = 64 << 20
_DRAIN_CHUNKS: Final = 64  # a pipe holds at most 1 MiB; more than that on draining is a background writer


class CappedBuffer:
    """Head and tail of a byte stream, `cap` bytes together."""

    def __init__(self, cap: int) -> None:
        self._head_cap = cap - cap // 2
        self._tail_cap = cap // 2
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self.total = 0
        """Bytes written by the command."""

    def write(self, data: bytes) -> None:
        """Take the next bytes."""
        self.total += len(data)
        room = self._head_cap - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if not data:
            return
        self._tail.append(data)
        self._tail_size += len(data)
        while self._tail and self._tail_size - len(self._tail[0]) >= self._tail_cap:
            self._tail_size -= len(self._tail.popleft())

    @property
    def truncated(self) -> bool:
        """Whether bytes were cut out of the middle."""
        return self.total > self._head_cap + self._tail_cap

    def value(self) -> bytes:
        """What was kept, the cut marked by a line that says how much is missing."""
        tail = b"".join(self._tail)
        if not self.truncated:
            return bytes(self._head) + tail
        tail = tail[len(tail) - self._tail_cap :] if self._tail_cap else b""
        cut = self.total - len(self._head) - len(tail)
        return bytes(self._head) + f"\n[... {cut} bytes cut ...]\n".encode() + tail


class PipeReader:
    """Reads one pipe into a capped buffer from the event loop; calls `on_flood` once if the stream will not end."""

    def __init__(self, descriptor: int, cap: int, on_flood: Callable[[], None]) -> None:
        """Takes over `descriptor`, which must be the read end of a pipe."""
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._reading = True
        self._on_flood = on_flood
        self._cap = cap
        self.buffer = CappedBuffer(cap)
        """What came since the last `restart`."""
        self._loop.add_reader(descriptor, self._read)

    def restart(self, cap: int, on_flood: Callable[[], None]) -> None:
        """Begin the output of another command on the same pipe."""
        self._cap, self._on_flood = cap, on_flood
        self.buffer = CappedBuffer(cap)

    def _read(self) -> None:
        if not self._take():
            self._stop_reading()
        elif self.buffer.total > max(self._cap * _FLOOD_CAPS, _FLOOD_BYTES):
            self._on_flood()

    def _take(self) -> bool:
        """One chunk; False at the end of the stream."""
        try:
            data = os.read(self._descriptor, _CHUNK)
        except BlockingIOError:
            return True
        self.buffer.write(data)
        return bool(data)

    def drain(self) -> None:
        """Take what already lies in the pipe. Does not wait for background children that hold its other end."""
        for _ in range(_DRAIN_CHUNKS):
            before = self.buffer.total
            if not self._reading or not self._take() or self.buffer.total == before:
                return

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._descriptor)

    def close(self) -> None:
        """Stop and close. Idempotent."""
        self._stop_reading()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
