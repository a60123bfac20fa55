"""Sessions of a container: a keeper inside holds the program, its pipes and its terminal, and speaks over its own standard streams.

    container program   `guest.keeper`: requests in, events out
    credit              how much output may be on its way: a slow reader holds the program back, and hears the end all the same

The keeper has the agent's uid: what it says is believed about this session and nothing else.
"""

import asyncio
import base64
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final

from temper.runtime.errors import Rejected, Unavailable
from temper.sandbox.engine.base import CommandResult, SessionSpec, Sink, Stream
from temper.sandbox.engine.container import boot
from temper.sandbox.engine.container.line import Line
from temper.sandbox.engine.container.seam import Container
from temper.sandbox.engine.conversation import Conversation, require_possible
from temper.sandbox.engine.guest import wire
from temper.sandbox.engine.output import CappedBuffer
from temper.sandbox.engine.running import Judge, tagged
from temper.sandbox.engine.shell import COMMAND, framed

_MODULES: Final = ("wire", "processes", "syscalls", "keys", "starting", "keeper")
_START_S: Final = 30.0
_TYPED_AHEAD: Final = 64 << 10
_PIECE: Final = 16 << 10
_FLOOD_BYTES: Final = 64 << 20
_FLOOD_CAPS: Final = 16


async def open_session(
    container: Container, name: str, spec: SessionSpec, sink: Sink | None, judge: Judge
) -> "ContainerSession":
    """Start a keeper and, by it, the session's program. Raises Rejected, Unavailable."""
    require_possible(spec)
    line = Line(await boot.start(container, "-I"), boot.sources(_MODULES))
    session = ContainerSession(container, line, name, spec, sink, judge)
    await session.start()
    return session


class ContainerSession(Conversation):
    """See the module."""

    def __init__(
        self,
        container: Container,
        line: Line,
        name: str,
        spec: SessionSpec,
        sink: Sink | None,
        judge: Judge,
    ) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(name, spec, sink, container.meter, judge, loop.create_future(), line.lost)
        self._environment = dict(container.environment)
        self._line = line
        self._begun: asyncio.Future[wire.Message] = loop.create_future()
        self._killed: asyncio.Future[None] = loop.create_future()
        self._status: asyncio.Future[int] = loop.create_future()
        self._typists = {name: _Typist(name, line, self._ended) for name in ("input", "script")}
        streams = [Stream.STDOUT] if spec.terminal else list(Stream)
        self._flows = {
            stream.value: Flow(stream.value, line, spec.output_bytes, tagged(sink, stream))
            for stream in streams
        }
        self._readers = list(self._flows.values())
        self.ours: frozenset[int] = frozenset()
        """Pids of its keeper, and of what leads its terminal where that is none of the agent's, as the container numbers them."""

    async def start(self) -> None:
        """Start the program and wait until it runs. Raises Rejected with the reason if it cannot, Unavailable."""
        spec = self._spec
        self._line.listen(self._hear)
        self._line.send(
            {
                "op": "begin",
                "argv": list(spec.argv or COMMAND),
                "env": self._environment
                | ({"TERM": "xterm-256color"} if spec.terminal else {})
                | dict(spec.env),
                "cwd": spec.cwd,
                "terminal": spec.terminal,
                "rows": spec.rows,
                "columns": spec.columns,
                "stdin": spec.stdin,
                "shell": not spec.argv,
            }
        )
        awaited = {self._begun, self._died}
        await asyncio.wait(awaited, timeout=_START_S, return_when=asyncio.FIRST_COMPLETED)
        if not self._begun.done():
            await self._abandon()
            raise Unavailable(
                f"the sandbox cannot keep another session: {self._line.complaint or 'no answer'}"
            )
        begun = self._begun.result()
        if begun["event"] == "refused":
            await self._abandon()
            raise Rejected(f"cannot start {spec.argv}: {begun.get('error')}", field="argv")
        self.pid, self.ours = int(begun["pid"]), frozenset(int(pid) for pid in begun["ours"])

    async def _abandon(self) -> None:
        self.lost()
        await self._line.closed()

    def _hear(self, event: wire.Message) -> None:
        """An event of the keeper. Raises ValueError, KeyError or TypeError for what none would say."""
        match event["event"]:
            case "output":
                self._flows[event["stream"]].take(base64.b64decode(event["data"], validate=True))
            case "typed":
                self._typists[event["to"]].took(int(event["bytes"]))
            case "status":
                _settle(self._status, int(event["status"]))
            case "started" | "refused":
                _settle(self._begun, event)
            case "exited":
                _settle(self._ended, {"event": "exited", "status": int(event["status"])})
            case "killed":
                _settle(self._killed, None)
            case other:
                raise ValueError(other)

    def _send_script(self, script: str) -> "tuple[asyncio.Future[int], asyncio.Task[None]]":
        self._status = asyncio.get_running_loop().create_future()
        return self._status, asyncio.create_task(self._typists["script"].type(framed(script)))

    async def write(self, data: bytes) -> None:
        """Type; waits while the program does not read. Raises Rejected, Unavailable."""
        if not (self._spec.stdin or self._spec.terminal) or self.closed:
            raise Rejected(
                "this session has no standard input", field="stdin", hint="open it with stdin or a terminal"
            )
        await self._typists["input"].type(data)

    def _set_size(self, rows: int, columns: int) -> None:
        self._line.send({"op": "resize", "rows": rows, "columns": columns})

    def _signal_tree(self, number: int) -> None:
        self._line.send({"op": "signal", "signal": number})

    def _kill_tree(self) -> "asyncio.Future[Any]":
        self._killed = asyncio.get_running_loop().create_future()
        self._line.send({"op": "kill"})
        return self._killed

    def _let_go(self) -> None:
        self._line.close()

    async def close(self, grace_s: float = 0.2) -> CommandResult:
        """As in every session; returns once the keeper is told to leave."""
        result = await super().close(grace_s)
        await self._line.closed()
        return result


class Flow:
    """One stream of a session: into a capped buffer and to the sink, whose pace is the program's."""

    def __init__(
        self, name: str, line: Line, cap: int, sink: Callable[[bytes], Awaitable[None]] | None
    ) -> None:
        self._name = name
        self._line = line
        self._cap = cap
        self._sink = sink
        self._on_flood: Callable[[], None] = lambda: None
        self._queue: list[bytes] = []
        self._delivery: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self.buffer = CappedBuffer(cap)
        """What came since the last `restart`."""

    def restart(
        self,
        cap: int,
        on_flood: Callable[[], None],
        sink: Callable[[bytes], Awaitable[None]] | None = None,
    ) -> None:
        """Begin the output of another script."""
        self._cap, self._on_flood, self._sink = cap, on_flood, sink
        self.buffer = CappedBuffer(cap)

    def take(self, data: bytes) -> None:
        """The next bytes."""
        self.buffer.write(data)
        if self._sink is None and not self._queue:
            self._credit(data)
            if self.buffer.total > max(self._cap * _FLOOD_CAPS, _FLOOD_BYTES):
                self._on_flood()
            return
        self._queue.append(data)
        if self._delivery is None:
            self._begin()

    def _credit(self, data: bytes) -> None:
        self._line.send({"op": "took", "stream": self._name, "bytes": len(data)})

    def _begin(self) -> None:
        self._delivery = asyncio.create_task(self._deliver())
        self._delivery.add_done_callback(self._delivered)

    async def _deliver(self) -> None:
        while self._queue:
            if self._sink is not None:
                await self._sink(self._queue[0])
            self._credit(self._queue.pop(0))

    def _delivered(self, delivery: "asyncio.Task[None]") -> None:
        """A sink that failed gets nothing more; the program goes on, and `finish` says why."""
        self._delivery = None
        if delivery.cancelled():
            return
        if (failure := delivery.exception()) is not None:
            self._sink, self._failure = None, failure
        if self._queue:
            self._begin()

    async def finish(self, within_s: float) -> None:
        """Deliver what has come, within the time. Raises what the sink raised."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self._delivery is not None:
                    await asyncio.wait({self._delivery})
                    await asyncio.sleep(0)  # its callback may have begun another
        self.close()
        for data in self._queue:
            self._credit(data)
        self._queue.clear()
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Stop delivering. Idempotent."""
        if self._delivery is not None:
            self._delivery.cancel()


class _Typist:
    """One input of a session: no more on its way than its window, so who types waits for who reads."""

    def __init__(self, name: str, line: Line, ended: "asyncio.Future[wire.Message]") -> None:
        self._name = name
        self._line = line
        self._ended = ended
        self._turn = asyncio.Lock()
        self._ahead = 0
        self._news = asyncio.Event()

    def took(self, count: int) -> None:
        """The keeper has passed so many bytes on."""
        self._ahead -= count
        self._news.set()

    async def type(self, data: bytes) -> None:
        """Send all of it, and wait until it is passed on. Raises Unavailable if the session ends first."""
        async with self._turn:
            for start in range(0, len(data), _PIECE):
                piece = data[start : start + _PIECE]
                await self._until(_TYPED_AHEAD - len(piece))
                self._require_alive()
                self._ahead += len(piece)
                text = base64.b64encode(piece).decode()
                self._line.send({"op": "input", "to": self._name, "data": text})
            await self._until(0)

    def _require_alive(self) -> None:
        if self._ended.done() or self._line.lost.done():
            raise Unavailable("the session has ended")

    async def _until(self, ahead: int) -> None:
        while self._ahead > ahead:
            self._require_alive()
            self._news.clear()
            waiting = asyncio.create_task(self._news.wait())
            awaited: set[asyncio.Future[Any]] = {waiting, self._ended, self._line.lost}
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()


def _settle(future: "asyncio.Future[Any]", value: Any) -> None:
    if not future.done():
        future.set_result(value)
