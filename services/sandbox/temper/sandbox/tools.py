"""The tools a policy can call, their schemas, and how a result becomes the text it reads. Pure.

python   code in the sandbox's persistent interpreter: what it prints, and the value of a trailing expression
shell    a command line, as the one argument of `/bin/sh -c` inside the sandbox; nothing of ours is put into it
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from temper.runtime.errors import Rejected
from temper.sandbox.engine.base import Command, CommandResult, Limits, Outcome, Sandbox

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
_ARGUMENT: Final = {Kind.PYTHON: "code", Kind.SHELL: "command"}


async def run(sandbox: Sandbox, tool: Tool, arguments: Mapping[str, Any], limits: Limits) -> CommandResult:
    """Run one call. Raises Rejected if the one argument is missing or no text."""
    argument = _ARGUMENT[tool.kind]
    text = arguments.get(argument)
    if not isinstance(text, str):
        raise Rejected("must be a string", field=f"call.arguments_json.{argument}")
    if "\0" in text:
        return CommandResult(Outcome.OK, error="ValueError: source code string cannot contain null bytes")
    # A lone surrogate has no bytes; all else is unchanged.
    text = text.encode(errors="backslashreplace").decode()
    if tool.kind is Kind.PYTHON:
        return await sandbox.python(text, limits)
    return await sandbox.execute(Command(("/bin/sh", "-c", text)), limits)


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
