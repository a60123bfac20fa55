"""Files and trees in and out of a sandbox, of any size: what fits a message goes in one, the rest through a program inside.

    in    head -c SIZE, typed to in pieces      (for a tree: into tar)
    out   cat, read as it streams

So a large copy obeys the sandbox's own limits, needs these programs there, and asks for approval where commands do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from temper.api.sandbox.v1 import control_pb2, sandbox_pb2
from temper.runtime.errors import Rejected, Unavailable

if TYPE_CHECKING:
    from temper.client.sdk.sandbox import Place, SandboxClient

PIECE: Final = 512 << 10
"""Bytes of one message."""
_LONGEST_S: Final = 24 * 3600.0
_LAST_WORDS_S: Final = 30.0
"""For a program that takes no more input to end by itself."""
_WRITE: Final = (
    'mkdir -p -- "$(dirname -- "$2")" && head -c "$1" > "$2" && chmod "$3" -- "$2" '
    '&& [ "$(wc -c < "$2")" = "$1" ]'
)
_UNPACK: Final = 'mkdir -p -- "$2" && head -c "$1" | tar -x -z -f - -C "$2"'

Take = Callable[[bytes], Awaitable[None]]


async def put_file(client: SandboxClient, place: Place, path: str, content: bytes, mode: int) -> None:
    """Write a file, creating directories. Raises Rejected with what the sandbox said."""
    if len(content) <= PIECE:
        request = sandbox_pb2.PutFileRequest(session_id=place.name, path=path, content=content, mode=mode)
        await client.ask(place.host, request, sandbox_pb2.PutFileResponse)
    else:
        await _type_in(client, place, _WRITE, content, path, f"{mode:o}")


async def put_tree(client: SandboxClient, place: Place, path: str, archive: bytes) -> None:
    """Unpack what `trees.packed` made below a directory. Raises Rejected with what the sandbox said."""
    if len(archive) <= PIECE:
        tree = control_pb2.PutTreeRequest(session_id=place.name, path=path, content=archive)
        await client.ask(place.host, tree, control_pb2.PutTreeResponse)
    else:
        await _type_in(client, place, _UNPACK, archive, path or ".")


async def get_file(client: SandboxClient, place: Place, path: str, take: Take) -> None:
    """A whole file, in pieces, each taken before the next is read. Raises Rejected with what the sandbox said."""
    request = sandbox_pb2.GetFileRequest(session_id=place.name, path=path)
    reply = await client.ask(place.host, request, sandbox_pb2.GetFileResponse)
    if not reply.truncated:
        await take(reply.content)
        return
    said = bytearray()

    async def show(is_error: bool, data: bytes) -> None:
        if is_error:
            said.extend(data)
        else:
            await take(data)

    result = await client.execute(place, ("cat", "--", path), show, wall_s=_LONGEST_S)
    _require(path, result, bytes(said))


async def _type_in(
    client: SandboxClient, place: Place, script: str, content: bytes, path: str, *more: str
) -> None:
    """Have a script read exactly this on its standard input; size and path are its arguments, never its text."""
    argv = ("/bin/sh", "-c", script, "put", str(len(content)), path, *more)
    program = await client.start(place, argv, terminal=False)
    said = bytearray()
    try:
        taken = await _took(client, place, program, content)
        with suppress(TimeoutError):
            async with asyncio.timeout(_LONGEST_S if taken else _LAST_WORDS_S):
                async for chunk in client.output(place, program):
                    said += chunk.data
    finally:
        result = await client.close(place, program)
    _require(path, result, bytes(said))


async def _took(client: SandboxClient, place: Place, program: str, content: bytes) -> bool:
    """Type all of it; False for a program that takes no more, most likely because it has ended: what it said tells why."""
    try:
        for at in range(0, len(content), PIECE):
            await client.type(place, program, content[at : at + PIECE])
    except (Rejected, Unavailable):
        return False
    return True


def _require(path: str, result: sandbox_pb2.CommandResult, said: bytes) -> None:
    if result.exit_code == 0 and result.HasField("exit_code"):
        return
    outcome = sandbox_pb2.Outcome.Name(result.outcome).removeprefix("OUTCOME_").lower()
    why = said.decode(errors="replace").strip() or (result.error or outcome)
    raise Rejected(f"{path}: {why}", field="path")
