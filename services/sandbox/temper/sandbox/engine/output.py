"""Output of a command under a byte cap, kept while it streams: memory stays flat whatever the command writes."""

import asyncio
import errno
import os
from collections import deque
from collections.abc import Awaitable, Callable
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
    """Reads one pipe or terminal into a capped buffer from the event loop, and to a sink if there is one.

    Without a sink `on_flood` is called once the stream seems never to end; with one its reader sets the pace, and nothing is
    read ahead of it.
    """

    def __init__(
        self,
        descriptor: int,
        cap: int,
        on_flood: Callable[[], None],
        sink: Callable[[bytes], Awaitable[None]] | None = None,
    ) -> None:
        """Takes over `descriptor`."""
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._reading = True
        self._on_flood = on_flood
        self._cap = cap
        self._sink = sink
        self._delivery: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self._finishing = False
        self._chunks_left = _DRAIN_CHUNKS
        self.buffer = CappedBuffer(cap)
        """What came since the last `restart`."""
        self._loop.add_reader(descriptor, self._readable)

    def restart(
        self,
        cap: int,
        on_flood: Callable[[], None],
        sink: Callable[[bytes], Awaitable[None]] | None = None,
    ) -> None:
        """Begin the output of another command on the same pipe."""
        self._cap, self._on_flood, self._sink = cap, on_flood, sink
        self.buffer = CappedBuffer(cap)

    def _readable(self) -> None:
        if self._sink is not None:
            self._loop.remove_reader(self._descriptor)
            self._delivery = self._loop.create_task(self._deliver(self._sink))
            self._delivery.add_done_callback(self._delivered)
        elif self._take() is None:
            self._stop_reading()
        elif self.buffer.total > max(self._cap * _FLOOD_CAPS, _FLOOD_BYTES):
            self._on_flood()

    async def _deliver(self, sink: Callable[[bytes], Awaitable[None]]) -> None:
        """Chunk by chunk to the sink until the pipe is empty; meanwhile nothing else is read."""
        while self._chunks_left > 0:
            data = self._take()
            if data is None:
                self._reading = False
            if not data:
                return
            if self._finishing:
                self._chunks_left -= 1
            await sink(data)

    def _delivered(self, delivery: "asyncio.Task[None]") -> None:
        """Wait for more. A sink that failed gets nothing more; the program goes on, and `finish` says why."""
        self._delivery = None
        if not delivery.cancelled() and (failure := delivery.exception()) is not None:
            self._sink, self._failure = None, failure
        if self._reading and self._descriptor >= 0:
            self._loop.add_reader(self._descriptor, self._readable)

    def _take(self) -> bytes | None:
        """One chunk, nothing if none is there yet, None at the end of the stream."""
        try:
            data = os.read(self._descriptor, _CHUNK)
        except BlockingIOError:
            return b""
        except OSError as error:
            if error.errno != errno.EIO:  # how a terminal says that nobody has it open any more
                raise
            return None
        self.buffer.write(data)
        return data or None

    def drain(self) -> None:
        """Take what already lies in the pipe. Does not wait for background children that hold its other end."""
        for _ in range(_DRAIN_CHUNKS):
            if not self._reading or not self._take():
                return

    async def finish(self, within_s: float) -> None:
        """As `drain`, and have it delivered: within the time, or what is left is not. Raises what the sink raised."""
        if self._sink is not None:
            self._finishing, self._chunks_left = True, _DRAIN_CHUNKS
            if self._delivery is None and self._reading:
                self._readable()
            if self._delivery is not None:
                delivery = self._delivery
                await asyncio.wait({delivery}, timeout=within_s)
                delivery.cancel()
            self._finishing, self._chunks_left = False, _DRAIN_CHUNKS
        self.drain()
        if self._failure is not None:
            raise self._failure

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._descriptor)

    def close(self) -> None:
        """Stop and close. Idempotent."""
        self._stop_reading()
        if self._delivery is not None:
            self._delivery.cancel()
            self._delivery = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
