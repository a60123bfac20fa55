"""Judging a final state: what the agent made is run against tests that it never saw, in a sandbox that it never had.

    agent's sandbox: every process dead -> named files come out, as bytes -> destroyed
    fresh sandbox:   those files in /work/submission, the tests in /work/verifier -> one command -> exit code and output

The tests come to this host's sandboxes only after the agent has ended. The verdict is what the host itself saw of the
command; a file, a stream or a process of the agent has no way to it. Code of the submission that a test imports into its own
process can still lie to that test: run it as a program of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from temper.runtime.errors import Exhausted, Rejected, Unavailable
from temper.sandbox.engine.base import Backend, Command, CommandResult, Limits, Sandbox
from temper.sandbox.tools import clean

SUBMISSION: Final = "/work/submission"
VERIFIER: Final = "/work/verifier"
MAX_FILES: Final = 256
MAX_BYTES: Final = 8 << 20
"""Bytes of all files of one side together."""
_MAX_WALL_S: Final = 3600.0


class BadSpec(ValueError):  # noqa: N818 - the environment's mistake
    """What `verification` gave is no specification."""


@dataclass(frozen=True, slots=True)
class Spec:
    """How a final state is judged. Example: `Spec(("python3", "verifier/test.py"), {"test.py": b""}, ("answer.py",))`."""

    argv: tuple[str, ...]
    """Command of the verifier, run in /work."""
    files: Mapping[str, bytes]
    """Its files, below /work/verifier."""
    collect: tuple[str, ...]
    """Files of the agent to take along, relative to its /work; they lie below /work/submission."""
    wall_s: float = 60.0
    """Seconds it has."""


def parse(value: object) -> Spec:
    """From what the environment answered: `{"argv", "files", "collect", "wall_s"}`. Raises BadSpec."""
    if not isinstance(value, dict):
        raise BadSpec("verification must give a dict")
    table = cast("dict[str, Any]", value)
    argv, files, collect = table.get("argv"), table.get("files", {}), table.get("collect", [])
    if not _texts(argv) or not argv:
        raise BadSpec("verification: argv must be a list of texts")
    if not isinstance(files, dict) or not _texts([*files, *files.values()]):
        raise BadSpec("verification: files must map names to texts")
    if not _texts(collect) or len(collect) > MAX_FILES:
        raise BadSpec(f"verification: collect must be at most {MAX_FILES} paths")
    wall_s = table.get("wall_s", 60.0)
    if isinstance(wall_s, bool) or not isinstance(wall_s, int | float) or not 0 < wall_s <= _MAX_WALL_S:
        raise BadSpec(f"verification: wall_s must be within (0, {_MAX_WALL_S:g}]")
    contents = {str(name): str(text).encode() for name, text in cast("dict[str, Any]", files).items()}
    return Spec(tuple(argv), contents, tuple(collect), float(wall_s))


def _texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in cast("list[Any]", value))


async def collect(sandbox: Sandbox, spec: Spec) -> dict[str, bytes]:
    """The files that were named, after every process of the agent is dead. What is missing, a link or too long stays out."""
    await sandbox.quiesce()
    found: dict[str, bytes] = {}
    room = MAX_BYTES
    for path in spec.collect:
        try:
            content, more = await sandbox.get_file(path, room)
        except Rejected:
            continue
        if not more:
            found[path] = content
            room -= len(content)
    return found


async def run(
    backend: Backend, name: str, spec: Spec, submission: Mapping[str, bytes], limits: Limits
) -> dict[str, Any]:
    """Run the verifier in a sandbox of its own; what `judge` is given. Raises Unavailable."""
    try:
        sandbox = await backend.create(name, limits)
    except Exhausted as error:
        raise Unavailable(f"no sandbox for the verifier: {error.message}") from error
    try:
        for path, content in submission.items():
            await sandbox.put_file(f"{SUBMISSION}/{path}", content)
        for path, content in spec.files.items():
            await sandbox.put_file(f"{VERIFIER}/{path}", content)
        result = await sandbox.execute(Command(spec.argv), replace(limits, wall_s=spec.wall_s))
    except Rejected as error:
        raise BadSpec(f"verification: {error}") from error
    except Exhausted as error:
        raise BadSpec("verification: its files and the submission do not fit the disk") from error
    finally:
        await sandbox.destroy()
    return {**_seen(result), "missing": [path for path in spec.collect if path not in submission]}


def _seen(result: CommandResult) -> dict[str, Any]:
    return {
        "outcome": result.outcome.value,
        "exit_code": result.exit_code,
        "signal": result.signal,
        "error": result.error,
        "stdout": clean(result.stdout),
        "stderr": clean(result.stderr),
    }
