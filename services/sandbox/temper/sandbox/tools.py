"""The tools a policy can call, their schemas, and how a result becomes the text it reads.

python   code in the sandbox's persistent interpreter: what it prints, and the value of a trailing expression
shell    a command line, as the one argument of `/bin/sh -c` inside the sandbox; nothing of ours is put into it
files    read, write, list, edit and search files of the sandbox, without a program inside
submit   the answer, as a call: the episode is over for the policy

Calls come here through `gateway`, which has read and checked them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from temper.runtime.errors import Exhausted, Rejected
from temper.sandbox.engine.base import Command, CommandResult, Edit, Limits, Outcome, Sandbox

_CONTROL: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # CSI
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"  # OSC, DCS, SOS, PM, APC
    r"|\x1b[ -/]*[0-~]?"  # other escapes
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)
"""Terminal control. Source: ECMA-48, both its 7-bit and 8-bit forms."""


class Kind(StrEnum):
    """What a tool runs on."""

    PYTHON = "python"
    SHELL = "shell"
    FILES = "files"
    SUBMIT = "submit"


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool as an environment offers it. Example: `Tool("python", Kind.PYTHON, "Run Python code.", {...})`."""

    name: str
    """Name the policy calls it by."""
    kind: Kind
    """What it runs on."""
    description: str
    """One sentence for the policy."""
    parameters: Mapping[str, Any]
    """JSON Schema (2020-12) of the arguments object."""
    degrade: str = ""
    """What the policy reads when the host cannot run the tool; empty: the episode ends as the host's failure."""


def _schema(argument: str, description: str) -> dict[str, Any]:
    return {
        "type": "object",
        "required": [argument],
        "additionalProperties": False,
        "properties": {argument: {"type": "string", "description": description}},
    }


PYTHON: Final = Tool(
    "python",
    Kind.PYTHON,
    "Run Python code; gives what it prints and the value of a trailing expression.",
    _schema("code", "Python source."),
)
SHELL: Final = Tool(
    "shell",
    Kind.SHELL,
    "Run a command line with /bin/sh; gives its output.",
    _schema("command", "Command line."),
)
FILES: Final = Tool(
    "files",
    Kind.FILES,
    "Read, write, list, edit or search files.",
    {
        "type": "object",
        "required": ["op"],
        "additionalProperties": False,
        "properties": {
            "op": {"enum": ["read", "write", "list", "edit", "search"], "description": "What to do."},
            "path": {"type": "string", "description": "File or directory; relative to /work."},
            "content": {"type": "string", "description": "Text to write."},
            "old": {"type": "string", "minLength": 1, "description": "Text to replace; must occur once."},
            "new": {"type": "string", "description": "Text in its place."},
            "pattern": {"type": "string", "minLength": 1, "description": "Regular expression to search for."},
        },
        "allOf": [
            {"if": {"properties": {"op": {"const": op}}, "required": ["op"]}, "then": {"required": needed}}
            for op, needed in (
                ("read", ["path"]),
                ("write", ["path", "content"]),
                ("edit", ["path", "old", "new"]),
                ("search", ["pattern"]),
            )
        ],
    },
)
SUBMIT: Final = Tool(
    "submit",
    Kind.SUBMIT,
    "Give the final answer; nothing can be done afterwards.",
    _schema("answer", "The answer."),
)
STANDARD: Final = {Kind.PYTHON: PYTHON, Kind.SHELL: SHELL, Kind.FILES: FILES, Kind.SUBMIT: SUBMIT}
"""The tool of each kind as it is where an environment says no more than the kind."""

_ARGUMENT: Final = {Kind.PYTHON: "code", Kind.SHELL: "command"}
_LISTED: Final = 200


def idempotent(tool: Tool, arguments: Mapping[str, Any]) -> bool:
    """Whether running the call again changes nothing."""
    return tool.kind is Kind.FILES and arguments.get("op") in {"read", "list", "search", "write"}


async def run(sandbox: Sandbox, tool: Tool, arguments: Mapping[str, Any], limits: Limits) -> CommandResult:
    """Run one call. Raises Rejected if the one argument is missing or no text."""
    if tool.kind is Kind.FILES:
        return await _files(sandbox, arguments, limits)
    if tool.kind is Kind.SUBMIT:
        return CommandResult(Outcome.OK, stdout=b"submitted")
    argument = _ARGUMENT[tool.kind]
    text = arguments.get(argument)
    if not isinstance(text, str):
        raise Rejected("must be a string", field=f"call.arguments_json.{argument}")
    if "\0" in text:
        return CommandResult(Outcome.OK, error="ValueError: source code string cannot contain null bytes")
    # A lone surrogate has no bytes; all else is unchanged.
    text = _writable(text)
    if tool.kind is Kind.PYTHON:
        return await sandbox.python(text, limits)
    return await sandbox.execute(Command(("/bin/sh", "-c", text)), limits)


def _writable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


async def _files(sandbox: Sandbox, arguments: Mapping[str, Any], limits: Limits) -> CommandResult:
    """A path that does not do is the agent's mistake, and a full disk its own doing: both are what it reads."""
    try:
        return await _file_operation(sandbox, arguments, limits)
    except Rejected as error:
        return CommandResult(Outcome.OK, error=f"error: {error.message}")
    except Exhausted as error:
        return CommandResult(Outcome.DISK_FULL, error=f"error: {error.message}")


async def _file_operation(sandbox: Sandbox, arguments: Mapping[str, Any], limits: Limits) -> CommandResult:
    path = _writable(str(arguments.get("path", "")))
    match arguments["op"]:
        case "read":
            content, more = await sandbox.get_file(path, limits.output_bytes)
            outcome = Outcome.OUTPUT_TRUNCATED if more else Outcome.OK
            return CommandResult(outcome, stdout=content, truncated=more)
        case "write":
            content = _writable(arguments["content"]).encode()
            await sandbox.put_file(path, content)
            return CommandResult(Outcome.OK, stdout=f"wrote {len(content)} bytes".encode())
        case "list":
            entries = await sandbox.list_files(path or "/work")
            lines = [f"{entry.kind.value:9} {entry.size:9} {entry.path}" for entry in entries[:_LISTED]]
        case "edit":
            edit = Edit(_writable(arguments["old"]), _writable(arguments["new"]))
            lines = [f"edited {(await sandbox.patch(path, [edit])).path}"]
        case _:
            found = await sandbox.search(_writable(arguments["pattern"]), path, _LISTED)
            lines = [f"{match.path}:{match.line}:{match.text}" for match in found]
    return CommandResult(Outcome.OK, stdout="\n".join(lines).encode(errors="replace"))


def observation(result: CommandResult, limits: Limits) -> str:
    """What the policy reads: output as text, then what went wrong, if anything did."""
    parts = [clean(result.stdout), clean(result.stderr)]
    if result.error is not None:
        parts.append(clean(result.error.encode(errors="replace")))
    elif result.exit_code:
        parts.append(f"[exit code {result.exit_code}]")
    notice = _notice(result, limits)
    if notice:
        parts.append(notice)
    return "\n".join(part for part in parts if part)


def is_error(result: CommandResult) -> bool:
    """Whether the agent did something wrong: an exception, a non-zero exit, a limit."""
    return bool(result.error or result.exit_code or result.signal or result.outcome is not Outcome.OK)


def _notice(result: CommandResult, limits: Limits) -> str:
    lost = "; the interpreter starts afresh" if result.interpreter_lost else ""
    match result.outcome:
        case Outcome.OK:
            return f"[killed by signal {result.signal}{lost}]" if result.signal else ""
        case Outcome.TIMED_OUT:
            return f"[timed out after {limits.wall_s:g} s{lost}]"
        case Outcome.CPU_EXCEEDED:
            return f"[cpu time limit of {limits.cpu_s or 0:g} s reached{lost}]"
        case Outcome.OOM_KILLED:
            return f"[out of memory: limit {limits.memory_bytes >> 20} MiB{lost}]"
        case Outcome.PIDS_EXCEEDED:
            return f"[process limit of {limits.pids} reached{lost}]"
        case Outcome.DISK_FULL:
            return "[disk full]"
        case Outcome.OUTPUT_TRUNCATED:
            return "[output cut]"
        case Outcome.SANDBOX_DIED:
            return "[the sandbox died]"


def clean(raw: bytes) -> str:
    """Bytes to text: invalid ones replaced, terminal control sequences stripped, no newline at the end."""
    return _CONTROL.sub("", raw.decode(errors="replace").replace("\r\n", "\n")).rstrip("\n")
