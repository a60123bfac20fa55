"""A sandbox as one blocking object, for scripts and notebooks.

with Sandbox.create(data_dir=".temper") as box:
    box.files.write("/work/a.py", "print(6 * 7)")
    print(box.run("python3 a.py").stdout)
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from temper.api.sandbox.v1 import control_pb2, sandbox_pb2
from temper.client.sdk import transfers
from temper.client.sdk.sandbox import Place, SandboxClient
from temper.client.sdk.target import broker
from temper.runtime.errors import Stale

T = TypeVar("T")
_CLOSE_S = 60.0


@dataclass(frozen=True, slots=True)
class Ran:
    """How a program ended. Example: `Ran("42", "", 0, "ok", 0.02)`."""

    stdout: str
    """Head and tail of its output, invalid bytes replaced."""
    stderr: str
    """The same of its errors."""
    exit_code: int | None
    """None if a signal ended it."""
    outcome: str
    """`ok`, `timed_out`, `oom_killed`, `pids_exceeded`, `disk_full`, `output_truncated`, `sandbox_died`, ..."""
    wall_s: float
    """Seconds."""
    error: str = ""
    """Why it did not run, if it did not: no such program, a byte that no argument may have."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What lies in a directory. Example: `Entry("/work/a", "file", 12)`."""

    path: str
    """Absolute, inside."""
    kind: str
    """`file`, `directory`, `link` or `other`."""
    size: int
    """Bytes of a file."""


class Sandbox:
    """See the module. Made by `create`; everything raises TemperError."""

    def __init__(self, client: SandboxClient, place: Place, loop: Loop) -> None:
        self.place = place
        """Where it is; `temper sandbox` takes it, too."""
        self.files = Files(self)
        """Its files."""
        self._client = client
        self._loop = loop

    @classmethod
    def create(
        cls,
        *,
        data_dir: str | Path = ".temper",
        bus_url: str = "",
        bus_token_file: str | Path | None = None,
        lease_s: float = 300.0,
        isolation: str = "",
        needs: Sequence[str] | str = (),
        allow: Sequence[str] | str = (),
        client: SandboxClient | None = None,
    ) -> Self:
        """One on the platform in `data_dir`, or on the one at `bus_url`; it lives `lease_s` seconds unused.

        `allow` names what it may reach, such as `["pypi.org", "api.example.com:8443=api"]`; nothing otherwise.
        """
        if client is None:
            token_file = Path(bus_token_file) if bus_token_file else None
            client = SandboxClient(*((bus_url, token_file) if bus_url else broker(Path(data_dir))))
        loop = Loop()
        try:
            loop.run(client.__aenter__())
            made = client.create(
                f"sdk-{secrets.token_hex(8)}", lease_s=lease_s, isolation=isolation, needs=needs, allow=allow
            )
            return cls(client, loop.run(made), loop)
        except BaseException:
            loop.run(client.__aexit__(None, None, None))
            loop.close()
            raise

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Destroy it."""
        self.close()

    def close(self) -> None:
        """Destroy it and disconnect; the second time there is nothing to do."""
        if self._loop.closed:
            return
        try:
            self._loop.run(self._client.release(self.place))
        finally:
            self._loop.run(self._client.__aexit__(None, None, None))
            self._loop.close()

    def run(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
    ) -> Ran:
        """Run a program; a string is a command line for `/bin/sh`. A limit that was hit is an outcome, no error."""
        argv = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        running = self._client.execute(self.place, argv, _ignore, stdin=stdin, env=env, wall_s=timeout_s)
        return _ran(self._loop.run(running))

    def call(self, tool: str, /, **arguments: Any) -> str:
        """What a policy would read of a call of `python`, `shell`, `files` or `submit`."""
        return self._loop.run(self._client.call(self.place, tool, arguments)).observation

    @contextlib.contextmanager
    def pty(self, *argv: str, rows: int = 24, columns: int = 80) -> Iterator[Terminal]:
        """A terminal with a shell, or with another program; it ends with the block."""
        starting = self._client.start(
            self.place, argv or ("/bin/sh",), terminal=True, rows=rows, columns=columns
        )
        terminal = Terminal(self, self._loop.run(starting))
        try:
            yield terminal
        finally:
            self._loop.run(self._client.close(self.place, terminal.program))

    def ask(self, request: Any, reply: type[Any]) -> Any:
        """One call of the service about this sandbox."""
        request.session_id = self.place.name
        return self._loop.run(self._client.ask(self.place.host, request, reply))

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of work of the client that this object uses."""
        return self._loop.run(work)

    @property
    def client(self) -> SandboxClient:
        """The client it uses."""
        return self._client


class Files:
    """Files of a sandbox; those over 512 KiB go through a program inside."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def read(self, path: str) -> bytes:
        """A whole file."""
        found = bytearray()

        async def take(data: bytes) -> None:
            found.extend(data)

        self._sandbox.wait(transfers.get_file(self._sandbox.client, self._sandbox.place, path, take))
        return bytes(found)

    def write(self, path: str, content: str | bytes, mode: int = 0o644) -> None:
        """Write a file, creating directories."""
        data = content.encode() if isinstance(content, str) else content
        self._sandbox.wait(transfers.put_file(self._sandbox.client, self._sandbox.place, path, data, mode))

    def list(self, path: str = "", depth: int = 1) -> list[Entry]:
        """Entries below a directory, the work directory without one."""
        request = control_pb2.ListFilesRequest(path=path, depth=depth)
        found = self._sandbox.ask(request, control_pb2.ListFilesResponse)
        return [Entry(each.path, _kind(each.kind), each.size) for each in found.entries]

    def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file or, with `recursive`, a tree."""
        request = control_pb2.RemoveFileRequest(path=path, recursive=recursive)
        self._sandbox.ask(request, control_pb2.RemoveFileResponse)


class Terminal:
    """A program with a terminal. What is typed needs its own end of line."""

    def __init__(self, sandbox: Sandbox, program: str) -> None:
        self.program = program
        """Its id."""
        self._sandbox = sandbox
        self._output = sandbox.client.output(sandbox.place, program)

    def send(self, text: str | bytes) -> None:
        """Type."""
        data = text.encode() if isinstance(text, str) else text
        self._sandbox.wait(self._sandbox.client.type(self._sandbox.place, self.program, data))

    def read(self) -> bytes:
        """What it says next, as it is; waits for it. Empty once it has ended."""
        return self._sandbox.wait(self._next())

    async def _next(self) -> bytes:
        chunk = await anext(self._output, None)
        return chunk.data if chunk is not None else b""

    def resize(self, rows: int, columns: int) -> None:
        """Change its size."""
        self._sandbox.wait(self._sandbox.client.resize(self._sandbox.place, self.program, rows, columns))


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sandbox", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run to its end, which the calls inside bound. Raises Stale when closed."""
        if self.closed:
            work.close()
            raise Stale("this sandbox was closed", field="sandbox", hint="Sandbox.create() makes another")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    @property
    def closed(self) -> bool:
        """Whether nothing runs here any more."""
        return self._loop.is_closed()

    def close(self) -> None:
        """Stop."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_S)
        self._loop.close()


async def _ignore(_: bool, __: bytes) -> None:
    """Output is in the result."""


def _ran(result: sandbox_pb2.CommandResult) -> Ran:
    return Ran(
        result.stdout.decode(errors="replace"),
        result.stderr.decode(errors="replace"),
        result.exit_code if result.HasField("exit_code") else None,
        sandbox_pb2.Outcome.Name(result.outcome).removeprefix("OUTCOME_").lower(),
        result.wall_s,
        result.error,
    )


def _kind(kind: control_pb2.EntryKind) -> str:
    return control_pb2.EntryKind.Name(kind).removeprefix("ENTRY_KIND_").lower()
