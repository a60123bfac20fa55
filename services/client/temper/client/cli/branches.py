"""`temper sandbox …`: files, snapshots and forks of a live sandbox."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from temper.client.cli.broker import HERE, Broker, SandboxArgument
from temper.client.cli.exits import FAILED, OK, say
from temper.client.cli.options import OutputOption

if TYPE_CHECKING:
    from temper.client.sdk.sandbox import SandboxClient

_WHOLE = Number(gte=0, lt=1 << 32)
"""What the wire's numbers can hold."""


def ls(
    sandbox: SandboxArgument,
    path: Annotated[str, Parameter(help="Directory; the work directory without.")] = "",
    /,
    *,
    depth: Annotated[int, Parameter(help="Levels down.", validator=_WHOLE)] = 1,
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
    """Copy a file or a tree in; links stay links. What is larger than 512 KiB goes through a program inside."""
    from temper.client.sdk import transfers
    from temper.client.sdk.sandbox import Place
    from temper.client.sdk.trees import packed

    content = packed(local) if local.is_dir() else local.read_bytes()

    async def work(client: SandboxClient) -> None:
        place = Place.parse(sandbox)
        if local.is_dir():
            await transfers.put_tree(client, place, remote, content)
        else:
            await transfers.put_file(client, place, remote, content, local.stat().st_mode & 0o777)

    broker.run(work)


def get(
    sandbox: SandboxArgument,
    remote: Annotated[str, Parameter(help="File inside.")],
    local: Annotated[Path, Parameter(help="New file on this machine.")],
    /,
    *,
    broker: Broker = HERE,
) -> None:
    """Copy a file out. What is larger than 512 KiB is read through a program inside, as it comes."""
    from temper.client.sdk import transfers
    from temper.client.sdk.sandbox import Place

    with local.open("xb") as file:

        async def take(data: bytes) -> None:
            file.write(data)

        async def work(client: SandboxClient) -> None:
            await transfers.get_file(client, Place.parse(sandbox), remote, take)

        try:
            broker.run(work)
        except BaseException:
            local.unlink()  # what came of it is not the file
            raise


def watch(
    sandbox: SandboxArgument,
    path: Annotated[str, Parameter(help="Directory; the work directory without.")] = "",
    /,
    *,
    broker: Broker = HERE,
) -> None:
    """Print what happens to files below a directory, a line each, until the sandbox ends or you interrupt."""
    from temper.api.sandbox.v1 import control_pb2
    from temper.client.cli.output import one_line, write
    from temper.client.sdk.sandbox import Place

    async def work(client: SandboxClient) -> None:
        async for change in client.watch(Place.parse(sandbox), path):
            if change is None:
                say(f"watching {path or 'the work directory'}")
            else:
                kind = control_pb2.ChangeKind.Name(change.kind).removeprefix("CHANGE_KIND_").lower()
                write(f"{kind:9} {one_line(change.path)}")

    broker.run(work)


def snapshot(
    sandbox: SandboxArgument,
    /,
    *,
    step: Annotated[
        int, Parameter(help="Step after which it is taken; of one step the last is kept.", validator=_WHOLE)
    ] = 0,
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
    *names: Annotated[str, Parameter(help="Names of the new sandboxes; one with a random name without.")],
    output: OutputOption = "table",
    broker: Broker = HERE,
) -> int:
    """New sandboxes with the files of a snapshot. Exit code 1 unless all came to be."""
    import secrets

    from temper.api.sandbox.v1 import control_pb2
    from temper.client.cli.output import emit
    from temper.client.sdk.sandbox import Place

    place = Place.parse(sandbox)
    called = names or (f"cli-{secrets.token_hex(4)}",)

    async def work(client: SandboxClient) -> Any:
        request = control_pb2.ForkRequest(
            session_id=place.name, snapshot_id=snapshot_id, fork_session_ids=called
        )
        return await client.ask(place.host, request, control_pb2.ForkResponse)

    forks = broker.run(work).forks
    rows = [{"sandbox": str(Place(place.host, each.session_id)), "error": each.error} for each in forks]
    emit(rows, ("sandbox", "error"), output)
    return FAILED if any(each.error for each in forks) else OK


def rollback(
    sandbox: SandboxArgument,
    step: Annotated[int, Parameter(help="Step to go back to.", validator=_WHOLE)],
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
