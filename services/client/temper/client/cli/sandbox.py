"""`temper sandbox …`: live sandboxes by hand."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from temper.client.cli.branches import fork, get, ls, put, rollback, snapshot, watch
from temper.client.cli.broker import HERE, Broker, SandboxArgument
from temper.client.cli.exits import FAILED, OK, say
from temper.client.cli.mcp import mcp
from temper.client.cli.options import OutputOption

if TYPE_CHECKING:
    from temper.client.sdk.sandbox import Place, SandboxClient


_MOST_MIB = 1 << 40


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
        watch,
        snapshot,
        fork,
        rollback,
        delete,
        mcp,
    )
    for command in commands:
        group.command(command, name=command.__name__.rstrip("_"))
    app.command(group)


def create(
    name: Annotated[
        str, Parameter(help="Name of your choice, joining one that lives already; a random one without.")
    ] = "",
    /,
    *,
    lease: Annotated[float, Parameter(help="Seconds it lives unused; 0 for the host's default.")] = 300.0,
    memory_mib: Annotated[int, Parameter(help="Kill limit on memory; 0 for the host's default.")] = 0,
    isolation: Annotated[str, Parameter(help="Least isolation: none, weak, namespace, vm.")] = "",
    need: Annotated[
        tuple[str, ...], Parameter(help="Capability it must have, e.g. sessions, snapshots:files.")
    ] = (),
    allow: Annotated[
        tuple[str, ...],
        Parameter(help="HOST[:PORT][=SECRET] it may reach; nothing without. SECRET is one of the host's."),
    ] = (),
    broker: Broker = HERE,
) -> None:
    """Make a bare sandbox and print its HOST/NAME."""
    import secrets

    from temper.api.sandbox.v1 import sandbox_pb2
    from temper.client.cli.output import write
    from temper.runtime.errors import Rejected

    if not 0 <= memory_mib <= _MOST_MIB:
        raise Rejected(f"{memory_mib} is not within 0 and {_MOST_MIB}", field="memory_mib")
    limits = sandbox_pb2.Limits(memory_bytes=memory_mib << 20)

    async def work(client: SandboxClient) -> Place:
        called = name or f"cli-{secrets.token_hex(4)}"
        return await client.create(
            called, lease_s=lease, limits=limits, isolation=isolation, needs=need, allow=allow
        )

    write(str(broker.run(work)))


def exec_(
    sandbox: SandboxArgument,
    *argv: Annotated[str, Parameter(help="Program and arguments, after `--`.", allow_leading_hyphen=True)],
    wall: Annotated[float, Parameter(help="Seconds it may take.")] = 60.0,
    stdin: Annotated[bool, Parameter(help="Give it standard input, read to its end first.")] = False,
    broker: Broker = HERE,
) -> int:
    """Run a program; its output streams here. Exit code 1 unless it ended well with 0.

    Interrupted, it goes on inside until it ends or its time is up, and the next command waits; `temper sandbox ps` shows it.
    """
    from temper.api.sandbox.v1 import sandbox_pb2
    from temper.client.sdk.sandbox import Place
    from temper.runtime.errors import Rejected

    if not argv:
        raise Rejected("no program is named", field="argv", hint="temper sandbox exec HOST/NAME -- ls -l")
    if not wall > 0:
        raise Rejected(f"must be positive, got {wall}", field="wall")

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
    limit = "" if result.outcome == sandbox_pb2.OUTCOME_OK else f"{outcome}: "
    say(f"{limit}{_ended(result, argv[0])}, {result.wall_s:.2f} s, {result.cpu_s:.2f} s cpu")
    return FAILED


def _ended(result: Any, program: str) -> str:
    """How a command ended, in words."""
    if result.HasField("exit_code"):
        return f"exit code {result.exit_code}"
    if result.HasField("signal"):
        return f"signal {result.signal}"
    return f"{program}: {result.error}" if result.error else "no status"


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


def delete(sandbox: SandboxArgument, /, *, broker: Broker = HERE) -> None:
    """Destroy a sandbox; one that is gone is fine."""
    from temper.client.sdk.sandbox import Place

    async def work(client: SandboxClient) -> bool:
        return await client.release(Place.parse(sandbox))

    say("deleted" if broker.run(work) else "was gone already")
