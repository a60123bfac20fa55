"""`temper sandbox …`: live sandboxes by hand."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from cyclopts import App, Parameter

from temper.client.cli.exits import FAILED, OK, say
from temper.client.cli.options import DEFAULT_DATA_DIR, DataDirOption, OutputOption

if TYPE_CHECKING:
    from temper.client.sdk.sandbox import Place, SandboxClient

T = TypeVar("T")
_INLINE = 512 << 10

SandboxArgument = Annotated[str, Parameter(help="HOST/NAME, as `temper sandbox create` printed it.")]


@Parameter(name="*")
@dataclass(frozen=True)
class Broker:
    """Which platform's broker a command talks to."""

    data_dir: DataDirOption = DEFAULT_DATA_DIR
    bus_url: Annotated[
        str, Parameter(name="--bus-url", env_var="TEMPER_BUS_URL", help="Broker instead of --data-dir.")
    ] = ""
    bus_token_file: Annotated[
        Path | None,
        Parameter(
            name="--bus-token-file", env_var="TEMPER_BUS_TOKEN_FILE", help="File with the broker's token."
        ),
    ] = None

    def client(self) -> SandboxClient:
        """A client, not connected yet. Unavailable if no platform runs in the data directory."""
        import tomllib

        from temper.client.sdk.sandbox import SandboxClient
        from temper.client.sdk.target import embedded
        from temper.runtime.errors import Unavailable

        if self.bus_url:
            return SandboxClient(self.bus_url, self.bus_token_file)
        embedded(self.data_dir)
        try:
            settings = tomllib.loads((self.data_dir / "run" / "sandbox.toml").read_text())
        except FileNotFoundError:
            raise Unavailable(f"the platform in {self.data_dir} runs no sandbox service") from None
        return SandboxClient(settings["bus"]["url"], Path(settings["bus"]["token_file"]))

    def run(self, work: Callable[[SandboxClient], Awaitable[T]]) -> T:
        """Connect, work, disconnect."""
        import asyncio

        async def connected() -> T:
            async with self.client() as client:
                return await work(client)

        return asyncio.run(connected())


HERE = Broker()


def register(app: App) -> None:
    """Add the group."""
    group = App(
        name="sandbox", help="Live sandboxes by hand: make one, run in it, move files, snapshot, fork."
    )
    commands: tuple[Callable[..., Any], ...] = (
        create,
        exec_,
        shell,
        ps,
        ls,
        put,
        get,
        snapshot,
        fork,
        rollback,
        delete,
    )
    for command in commands:
        group.command(command, name=command.__name__.rstrip("_"))
    app.command(group)


def create(
    name: Annotated[str, Parameter(help="Name of your choice; a random one without.")] = "",
    /,
    *,
    lease: Annotated[float, Parameter(help="Seconds it lives unused.")] = 300.0,
    memory_mib: Annotated[int, Parameter(help="Kill limit on memory; 0 for the host's default.")] = 0,
    isolation: Annotated[str, Parameter(help="Least isolation: none, weak, namespace, vm.")] = "",
    need: Annotated[
        tuple[str, ...], Parameter(help="Capability it must have, e.g. sessions, snapshots:files.")
    ] = (),
    broker: Broker = HERE,
) -> None:
    """Make a bare sandbox and print its HOST/NAME."""
    import secrets

    from temper.api.sandbox.v1 import sandbox_pb2
    from temper.client.cli.output import write

    limits = sandbox_pb2.Limits(memory_bytes=memory_mib << 20)

    async def work(client: SandboxClient) -> Place:
        called = name or f"cli-{secrets.token_hex(4)}"
        return await client.create(called, lease_s=lease, limits=limits, isolation=isolation, needs=need)

    write(str(broker.run(work)))


def exec_(
    sandbox: SandboxArgument,
    *argv: Annotated[str, Parameter(help="Program and arguments, after `--`.", allow_leading_hyphen=True)],
    wall: Annotated[float, Parameter(help="Seconds it may take.")] = 60.0,
    stdin: Annotated[bool, Parameter(help="Give it standard input, read to its end first.")] = False,
    broker: Broker = HERE,
) -> int:
    """Run a program; its output streams here. Exit code 1 unless it ended well with 0."""
    from temper.api.sandbox.v1 import sandbox_pb2
    from temper.client.sdk.sandbox import Place

    async def show(is_error: bool, data: bytes) -> None:
        out = sys.stderr.buffer if is_error else sys.stdout.buffer
        out.write(data)
        out.flush()

    async def work(client: SandboxClient) -> Any:
        content = sys.stdin.buffer.read() if stdin else b""
        return await client.execute(Place.parse(sandbox), argv, show, stdin=content, wall_s=wall)

    result = broker.run(work)
    outcome = sandbox_pb2.Outcome.Name(result.outcome).removeprefix("OUTCOME_").lower()
    fine = (sandbox_pb2.OUTCOME_OK, sandbox_pb2.OUTCOME_OUTPUT_TRUNCATED)  # the stream was whole
    if result.outcome in fine and result.HasField("exit_code") and result.exit_code == 0:
        return OK
    ended = f"exit code {result.exit_code}" if result.HasField("exit_code") else f"signal {result.signal}"
    say(f"{outcome}: {ended}, {result.wall_s:.2f} s, {result.cpu_s:.2f} s cpu")
    return FAILED


def shell(
    sandbox: SandboxArgument,
    *argv: Annotated[
        str, Parameter(help="Program instead of a shell, after `--`.", allow_leading_hyphen=True)
    ],
    broker: Broker = HERE,
) -> int:
    """A terminal in the sandbox; it ends with its program."""
    from temper.client.cli.terminal import converse
    from temper.client.sdk.sandbox import Place

    async def work(client: SandboxClient) -> int:
        return await converse(client, Place.parse(sandbox), argv or ("/bin/sh",))

    return broker.run(work)


def ps(sandbox: SandboxArgument, /, *, output: OutputOption = "table", broker: Broker = HERE) -> None:
    """What runs in the sandbox."""
    from temper.api.sandbox.v1 import control_pb2
    from temper.client.cli.output import emit
    from temper.client.sdk.sandbox import Place

    async def work(client: SandboxClient) -> Any:
        place = Place.parse(sandbox)
        request = control_pb2.ListProcessesRequest(session_id=place.name)
        return await client.ask(place.host, request, control_pb2.ListProcessesResponse)

    rows = [
        {
            "pid": each.pid,
            "parent": each.parent,
            "state": each.state,
            "cpu_s": each.cpu_s,
            "command": " ".join(each.argv),
        }
        for each in broker.run(work).processes
    ]
    emit(rows, ("pid", "parent", "state", "cpu_s", "command"), output)


def ls(
    sandbox: SandboxArgument,
    path: Annotated[str, Parameter(help="Directory; the work directory without.")] = "",
    /,
    *,
    depth: Annotated[int, Parameter(help="Levels down.")] = 1,
    output: OutputOption = "table",
    broker: Broker = HERE,
) -> None:
    """Entries below a directory of the sandbox."""
    from temper.api.sandbox.v1 import control_pb2
    from temper.client.cli.output import emit
    from temper.client.sdk.sandbox import Place

    async def work(client: SandboxClient) -> Any:
        place = Place.parse(sandbox)
        request = control_pb2.ListFilesRequest(session_id=place.name, path=path, depth=depth)
        return await client.ask(place.host, request, control_pb2.ListFilesResponse)

    rows = [
        {
            "path": each.path,
            "kind": control_pb2.EntryKind.Name(each.kind).removeprefix("ENTRY_KIND_").lower(),
            "size": each.size,
            "mode": f"{each.mode:o}",
            "target": each.target,
        }
        for each in broker.run(work).entries
    ]
    emit(rows, ("path", "kind", "size", "mode", "target"), output)


def put(
    sandbox: SandboxArgument,
    local: Annotated[Path, Parameter(help="File or directory of this machine.")],
    remote: Annotated[str, Parameter(help="Where to, inside; a directory's content goes below it.")],
    /,
    *,
    broker: Broker = HERE,
) -> None:
    """Copy a file or a tree in; links stay links. At most 512 KiB."""
    from temper.api.sandbox.v1 import control_pb2, sandbox_pb2
    from temper.client.sdk.sandbox import Place
    from temper.client.sdk.trees import packed
    from temper.runtime.errors import Rejected

    content = packed(local) if local.is_dir() else local.read_bytes()
    if len(content) > _INLINE:
        raise Rejected(f"{local} is over {_INLINE} bytes", field="local", hint="copy it in parts")

    async def work(client: SandboxClient) -> None:
        place = Place.parse(sandbox)
        if local.is_dir():
            tree = control_pb2.PutTreeRequest(session_id=place.name, path=remote, content=content)
            await client.ask(place.host, tree, control_pb2.PutTreeResponse)
        else:
            mode = local.stat().st_mode & 0o777
            file = sandbox_pb2.PutFileRequest(session_id=place.name, path=remote, content=content, mode=mode)
            await client.ask(place.host, file, sandbox_pb2.PutFileResponse)

    broker.run(work)


def get(
    sandbox: SandboxArgument,
    remote: Annotated[str, Parameter(help="File inside.")],
    local: Annotated[Path, Parameter(help="New file on this machine.")],
    /,
    *,
    broker: Broker = HERE,
) -> None:
    """Copy a file out. At most 512 KiB."""
    from temper.api.sandbox.v1 import sandbox_pb2
    from temper.client.sdk.sandbox import Place
    from temper.runtime.errors import Rejected

    async def work(client: SandboxClient) -> Any:
        place = Place.parse(sandbox)
        request = sandbox_pb2.GetFileRequest(session_id=place.name, path=remote)
        return await client.ask(place.host, request, sandbox_pb2.GetFileResponse)

    reply = broker.run(work)
    if reply.truncated:
        raise Rejected(f"{remote} is over {_INLINE} bytes", field="remote", hint="copy it in parts")
    with local.open("xb") as file:
        file.write(reply.content)


def snapshot(
    sandbox: SandboxArgument,
    /,
    *,
    step: Annotated[int, Parameter(help="Step after which it is taken.")] = 0,
    broker: Broker = HERE,
) -> None:
    """Keep the files as they are now and print the snapshot's id. It is dropped with the sandbox."""
    import secrets

    from temper.api.sandbox.v1 import control_pb2
    from temper.client.cli.output import write
    from temper.client.sdk.sandbox import Place

    async def work(client: SandboxClient) -> str:
        place = Place.parse(sandbox)
        request = control_pb2.SnapshotRequest(
            session_id=place.name, step=step, command_id=f"cli-{secrets.token_hex(8)}"
        )
        return (await client.ask(place.host, request, control_pb2.SnapshotResponse)).snapshot_id

    write(str(broker.run(work)))


def fork(
    sandbox: SandboxArgument,
    snapshot_id: Annotated[str, Parameter(help="From `temper sandbox snapshot`.")],
    /,
    *names: Annotated[str, Parameter(help="Names of the new sandboxes.")],
    output: OutputOption = "table",
    broker: Broker = HERE,
) -> int:
    """New sandboxes with the files of a snapshot. Exit code 1 unless all came to be."""
    from temper.api.sandbox.v1 import control_pb2
    from temper.client.cli.output import emit
    from temper.client.sdk.sandbox import Place

    place = Place.parse(sandbox)

    async def work(client: SandboxClient) -> Any:
        request = control_pb2.ForkRequest(
            session_id=place.name, snapshot_id=snapshot_id, fork_session_ids=names
        )
        return await client.ask(place.host, request, control_pb2.ForkResponse)

    forks = broker.run(work).forks
    rows = [{"sandbox": str(Place(place.host, each.session_id)), "error": each.error} for each in forks]
    emit(rows, ("sandbox", "error"), output)
    return FAILED if any(each.error for each in forks) else OK


def rollback(
    sandbox: SandboxArgument,
    step: Annotated[int, Parameter(help="Step to go back to.")],
    /,
    *,
    broker: Broker = HERE,
) -> None:
    """Go back to the last snapshot at or before a step; processes end."""
    from temper.api.sandbox.v1 import control_pb2
    from temper.client.sdk.sandbox import Place

    async def work(client: SandboxClient) -> Any:
        place = Place.parse(sandbox)
        request = control_pb2.RollbackRequest(session_id=place.name, step=step)
        return await client.ask(place.host, request, control_pb2.RollbackResponse)

    reply = broker.run(work)
    say(f"back at step {reply.step}, {reply.forgotten} commands forgotten")


def delete(sandbox: SandboxArgument, /, *, broker: Broker = HERE) -> None:
    """Destroy a sandbox; one that is gone is fine."""
    from temper.client.sdk.sandbox import Place

    async def work(client: SandboxClient) -> bool:
        return await client.release(Place.parse(sandbox))

    say("deleted" if broker.run(work) else "was gone already")
