"""Live sandboxes over the bus: make one, run in it, move files, snapshot, fork. What a host lacks it refuses.

async with SandboxClient(url, token_file) as client:
place = await client.create("try", lease_s=300)
result = await client.execute(place, ["python3", "-c", "print(1)"], print_it)
await client.release(place)
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from google.protobuf.message import Message

from temper.api.sandbox.v1 import control_pb2, sandbox_pb2
from temper.client.sdk import egress
from temper.runtime import topology
from temper.runtime.bus.credentials import Credentials
from temper.runtime.bus.nats import NatsBus
from temper.runtime.errors import Exhausted, Rejected, Stale, TemperError, Unavailable

M = TypeVar("M", bound=Message)
Say = Callable[[str], None]
"""Takes a line for a person."""
Show = Callable[[bool, bytes], Awaitable[None]]
"""Takes a chunk of output; True says that it is standard error."""

ANY = "any"
ALL = "all"
TIMEOUT_S = 60.0
MOST_STDIN = 1000 << 10
"""Bytes; with the rest of the request they fit a message of the bus."""
_LAST_WORD_S = 2.0
"""Wait for the answer to what is said in leaving."""
_COMMAND_MARGIN_S = 30.0
_WAIT_S = 10.0
_SILENCE_S = 5.0
"""How much later than asked for an answer may come before the question is put again, to a host that may be gone."""
_POLLS = 4
_ASK_AGAIN_S = 0.5
"""Between two questions about one approval; the host holds each for a while itself."""


@dataclass(frozen=True, slots=True)
class Place:
    """A live sandbox. Example: `Place("sandbox-4f2a", "try")`, written `sandbox-4f2a/try`."""

    host: str
    """Host that holds it."""
    name: str
    """Session id."""

    @classmethod
    def parse(cls, text: str) -> Place:
        """The inverse of `str`. Raises Rejected."""
        host, slash, name = text.partition("/")
        if not (host and slash and name):
            raise Rejected(
                f"{text!r} is not HOST/NAME", field="sandbox", hint="as `temper sandbox create` printed it"
            )
        return cls(host, name)

    def __str__(self) -> str:
        """As `parse` reads it."""
        return f"{self.host}/{self.name}"


class SandboxClient:
    """See the module. Where a person is asked first, calls wait for the word; `on_wait` is told so, once for each."""

    def __init__(self, url: str, token_file: Path | None = None, on_wait: Say | None = None) -> None:
        self._on_wait = on_wait
        token = token_file.read_text().strip() if token_file else None
        self._bus = NatsBus(url, name="temper/cli", credentials=Credentials(token=token))
        self._withdrawing: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        """Connect. Raises Unavailable."""
        await self._bus.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Disconnect, after a moment for what is being taken back."""
        if self._withdrawing:
            _, unheard = await asyncio.wait(self._withdrawing, timeout=_LAST_WORD_S)
            for task in unheard:
                task.cancel()
        await self._bus.close()

    async def ask(self, host: str, request: Message, reply: type[M], timeout_s: float = TIMEOUT_S) -> M:
        """One call; the method is the request's name without "Request". Raises TemperError."""
        subject = topology.rpc("sandbox", host, type(request).__name__.removesuffix("Request"))
        waits = False
        while True:
            try:
                return await self._bus.request(subject, request, reply, timeout_s=timeout_s)
            except Unavailable as error:
                raise _gone(host, error) from None
            except Exhausted as error:
                if error.field != "approval":
                    raise
                if self._on_wait is not None and not waits:
                    self._on_wait(f"{error.message}; temper approvals grant|deny ID answers it")
                waits = True
            await asyncio.sleep(_ASK_AGAIN_S)  # the same question: another id would ask a person anew

    async def _poll(self, host: str, request: Message, reply: type[M]) -> M:
        """A question that its host holds up to `_WAIT_S`, put again when it is not answered: a host that is gone shows at once."""
        for _ in range(_POLLS - 1):
            with contextlib.suppress(Unavailable):
                return await self.ask(host, request, reply, _WAIT_S + _SILENCE_S)
        return await self.ask(host, request, reply, _WAIT_S + _SILENCE_S)

    async def create(
        self,
        name: str,
        *,
        lease_s: float,
        limits: sandbox_pb2.Limits | None = None,
        isolation: str = "",
        needs: Sequence[str] | str = (),
        allow: Sequence[str] | str = (),
    ) -> Place:
        """A bare sandbox under a lease; one of this name that lives already is joined. Raises Rejected, Exhausted.

        `allow` names what it may reach, as `egress.policy` reads it. Whoever stops waiting for it has asked for nothing: it is taken back in the background.
        """
        asked = f"cli-{secrets.token_hex(8)}"
        wanted = [needs] if isinstance(needs, str) else needs
        request = sandbox_pb2.AcquireRequest(
            session_id=name,
            limits=limits,
            lease_s=lease_s,
            min_isolation=isolation,
            needs=wanted,
            egress=egress.policy(allow),
        )
        subject = topology.rpc("sandbox", ANY, "Acquire")
        try:
            reply = await self._bus.request(
                subject, request, sandbox_pb2.AcquireResponse, timeout_s=TIMEOUT_S, id=asked
            )
        except (Unavailable, asyncio.CancelledError):
            task = asyncio.create_task(self._withdraw(name, asked))
            self._withdrawing.add(task)
            task.add_done_callback(self._withdrawing.discard)
            raise
        return Place(reply.host, name)

    async def _withdraw(self, name: str, asked: str) -> None:
        """Say to every host that an Acquire is not wanted: which of them has it was not told.

        This is as long in force as the Acquire, since a host that is slow to hear one is slow to hear the other.
        """
        request = sandbox_pb2.ReleaseRequest(session_id=name, acquire_id=asked)
        with contextlib.suppress(TemperError):  # who cannot hear it has the lease
            await self.ask(ALL, request, sandbox_pb2.ReleaseResponse, TIMEOUT_S)

    async def execute(
        self,
        place: Place,
        argv: Sequence[str],
        show: Show,
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        wall_s: float = TIMEOUT_S,
    ) -> sandbox_pb2.CommandResult:
        """Run a program; `show` gets its output while it runs, and a slow one holds it back. Raises TemperError."""
        if not wall_s > 0:
            raise Rejected(f"must be a positive number of seconds, got {wall_s}", field="wall_s")
        if len(stdin) > MOST_STDIN:
            hint = "write it into a file and let the program read that"
            raise Rejected(f"{len(stdin)} bytes are over {MOST_STDIN}", field="stdin", hint=hint)
        command = f"cli-{secrets.token_hex(8)}"
        request = sandbox_pb2.ExecRequest(
            session_id=place.name,
            command_id=command,
            argv=argv,
            stdin=stdin,
            env=dict(env or {}),
            limits=sandbox_pb2.Limits(wall_s=wall_s),
            stream=True,
        )
        timeout_s = wall_s + _COMMAND_MARGIN_S
        running = asyncio.create_task(self.ask(place.host, request, sandbox_pb2.ExecResponse, timeout_s))
        reading = asyncio.create_task(self._show(place, command, show, running))
        try:
            await asyncio.wait({running, reading}, return_when=asyncio.FIRST_EXCEPTION)
            if not running.done():  # nobody can read on: the host is gone, or whoever was shown the output
                await reading
            return (await running).result
        finally:
            for task in (running, reading):
                task.cancel()

    async def _show(self, place: Place, stream: str, show: Show, running: asyncio.Task[Any]) -> None:
        """Until the end of the stream, which begins when a person who is asked first has said yes."""
        begun = False
        while True:
            try:
                async for chunk in self.output(place, stream):
                    begun = True
                    await show(chunk.stream == control_pb2.OUTPUT_STREAM_STDERR, chunk.data)
            except Rejected as error:
                if begun or running.done() or error.field != "stream_id":
                    raise
            else:
                return

    async def output(self, place: Place, stream: str) -> AsyncIterator[Any]:
        """Chunks of a program or streamed command until its end. Raises TemperError."""
        offset, ended = 0, False
        while not ended:
            request = control_pb2.ReadOutputRequest(
                session_id=place.name, stream_id=stream, offset=offset, wait_s=_WAIT_S
            )
            reply = await self._poll(place.host, request, control_pb2.ReadOutputResponse)
            for chunk in reply.chunks:
                yield chunk
            offset, ended = reply.offset, reply.ended

    async def watch(self, place: Place, path: str = "") -> AsyncGenerator[Any, None]:
        """Changes below a directory, from now until the sandbox ends or begins anew. Raises TemperError.

        The first item is None: it says that from here on nothing is missed.
        """
        name, offset, ended = f"cli-{secrets.token_hex(8)}", 0, False
        try:
            await self._changes(place, control_pb2.WatchFilesRequest(watch_id=name, path=path))
            yield None
            while not ended:
                request = control_pb2.WatchFilesRequest(watch_id=name, offset=offset, wait_s=_WAIT_S)
                try:
                    reply = await self._changes(place, request)
                except Stale:  # it ended between two looks
                    return
                for change in reply.changes:
                    yield change
                offset, ended = reply.offset, reply.ended
        finally:
            with contextlib.suppress(TemperError):  # a sandbox that is gone has closed it
                last = control_pb2.WatchFilesRequest(session_id=place.name, watch_id=name, close=True)
                await self.ask(place.host, last, control_pb2.WatchFilesResponse, _LAST_WORD_S)

    async def _changes(self, place: Place, request: Any) -> Any:
        request.session_id = place.name
        return await self._poll(place.host, request, control_pb2.WatchFilesResponse)

    async def call(self, place: Place, tool: str, arguments: Mapping[str, Any]) -> Any:
        """Call a standard tool; what is wrong with the call is its observation. Raises TemperError."""
        request = control_pb2.CallToolRequest(
            session_id=place.name,
            command_id=f"cli-{secrets.token_hex(8)}",
            call=sandbox_pb2.ToolCall(name=tool, arguments_json=json.dumps(arguments)),
        )
        timeout_s = TIMEOUT_S + _COMMAND_MARGIN_S
        return await self.ask(place.host, request, control_pb2.CallToolResponse, timeout_s)

    async def start(
        self, place: Place, argv: Sequence[str], *, terminal: bool, rows: int = 24, columns: int = 80
    ) -> str:
        """Start a program that is typed to; returns its id. Raises TemperError."""
        program = f"cli-{secrets.token_hex(8)}"
        request = control_pb2.StartProgramRequest(
            session_id=place.name,
            program_id=program,
            argv=argv,
            terminal=terminal,
            rows=rows,
            columns=columns,
            stdin=True,
            stream=True,
        )
        await self.ask(place.host, request, control_pb2.StartProgramResponse)
        return program

    async def type(self, place: Place, program: str, data: bytes) -> None:
        """Type into a program. Raises TemperError."""
        request = control_pb2.WriteInputRequest(
            session_id=place.name, program_id=program, command_id=f"cli-{secrets.token_hex(8)}", data=data
        )
        await self.ask(place.host, request, control_pb2.WriteInputResponse)

    async def resize(self, place: Place, program: str, rows: int, columns: int) -> None:
        """Change the size of a terminal. Raises TemperError."""
        request = control_pb2.ResizeTerminalRequest(
            session_id=place.name, program_id=program, rows=rows, columns=columns
        )
        await self.ask(place.host, request, control_pb2.ResizeTerminalResponse)

    async def close(self, place: Place, program: str) -> sandbox_pb2.CommandResult:
        """End a program. Raises TemperError."""
        request = control_pb2.CloseProgramRequest(session_id=place.name, program_id=program)
        return (await self.ask(place.host, request, control_pb2.CloseProgramResponse)).result

    async def release(self, place: Place) -> bool:
        """Destroy a sandbox; whether there was one. Raises TemperError."""
        request = sandbox_pb2.ReleaseRequest(session_id=place.name)
        return (await self.ask(place.host, request, sandbox_pb2.ReleaseResponse)).released


def _gone(host: str, error: Unavailable) -> Unavailable:
    """What it means that nobody listens at the name of one host."""
    if host in {ANY, ALL} or not error.message.startswith("nobody serves"):
        return error
    return Unavailable(
        f"no sandbox host {host!r} is up; if it was restarted it has another name, and its sandboxes ended with it",
        field="sandbox",
        hint="`temper sandbox create` makes another",
    )
