"""The one gate that every tool call goes through, in training and in evaluation: read, repair, check, run, retry, degrade.

    arguments as text -> read (pure) -> Checked | BadCall -> Gateway.call -> CommandResult

A bad call is an observation, never an error of the episode. What is repaired is form: a code fence, a missing bracket,
a number where text is asked for, a name with a slip of the pen. Values are never guessed, and a repaired call says so.
A failure of the host is not the tool's: it is tried again where that is harmless, answered by the text that the
environment declared for it, or raised.
"""

import difflib
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, cast

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from temper.runtime.clock import Clock
from temper.runtime.errors import Unavailable
from temper.sandbox import tools
from temper.sandbox.engine.base import CommandResult, Limits, Outcome, Sandbox

_SURE: Final = 0.8
"""Likeness from which a tool's name counts as a slip of the pen. Scale: difflib's ratio."""
_SURE_ARGUMENT: Final = 0.6
"""The same for the name of the one argument that is missing."""
_ATTEMPTS: Final = 3
_PAUSE_S: Final = 0.1
_BREAK_AFTER: Final = 5
"""Failures of the host in a row after which a tool is not tried for a while."""
_BREAK_S: Final = 30.0
_MAX_TEXT: Final = 200
_FENCE: Final = re.compile(r"\s*```[a-zA-Z0-9_-]*\n(.*?)\n?```\s*", re.DOTALL)
_CLOSERS: Final = {"{": "}", "[": "]"}


@dataclass(frozen=True, slots=True)
class Checked:
    """A call that fits its tool's schema. Example: `Checked(PYTHON, {"code": "1"}, ("unclosed",))`."""

    tool: tools.Tool
    """What to run."""
    arguments: Mapping[str, Any]
    """Fits `tool.parameters`."""
    repairs: tuple[str, ...] = ()
    """Kinds of repair that it took: fence, unclosed, trailing_text, tool_name, argument_name, bare_text, type."""


@dataclass(frozen=True, slots=True)
class BadCall:
    """A call that nothing can be run for. Example: `BadCall("unknown_tool", "error: no tool 'rm'; known: shell")`."""

    kind: str
    """`malformed`, `unknown_tool` or `invalid_args`."""
    observation: str
    """What the policy reads: path, expected, got; short and the same every time."""


def read(offered: Sequence[tools.Tool], name: str, text: str) -> Checked | BadCall:
    """The call in a name and the text of its arguments. Pure; never raises, whatever a policy writes."""
    repairs: list[str] = []
    tool = _find(offered, name, repairs)
    if isinstance(tool, BadCall):
        return tool
    value = _parse(tool, text, repairs)
    if isinstance(value, BadCall):
        return value
    arguments = _rename(tool, value, repairs)
    arguments = _convert(tool, arguments, repairs)
    problem = best_match(_validator(json.dumps(tool.parameters, sort_keys=True)).iter_errors(arguments))
    if problem is not None:
        where = ".".join(str(part) for part in problem.absolute_path) or "arguments"
        return BadCall("invalid_args", f"error: {where}: {problem.message[:_MAX_TEXT]}")
    return Checked(tool, arguments, tuple(repairs))


@lru_cache(
    maxsize=64
)  # checking a schema takes milliseconds, and a job offers the same few tools with every call
def _validator(schema: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads(schema))


def _find(offered: Sequence[tools.Tool], name: str, repairs: list[str]) -> tools.Tool | BadCall:
    known = {tool.name: tool for tool in offered}
    if name in known:
        return known[name]
    plain = name.strip().lower().removeprefix("functions.")
    near = difflib.get_close_matches(plain, [each.lower() for each in known], n=2, cutoff=_SURE)
    found = [tool for tool in offered if tool.name.lower() in near]
    if len(found) == 1:
        repairs.append("tool_name")
        return found[0]
    names = ", ".join(sorted(known)[:8])
    rest = f"; known: {names}" if names else "; there are no tools here"
    return BadCall("unknown_tool", f"error: no tool {name[:64]!r}{rest}")


def _parse(tool: tools.Tool, text: str, repairs: list[str]) -> dict[str, Any] | BadCall:
    fenced = _FENCE.fullmatch(text)
    if fenced:
        repairs.append("fence")
        text = fenced.group(1)
    value = _json(text or "{}", repairs)
    if isinstance(value, dict):
        return cast("dict[str, Any]", value)
    sole = _sole_text(tool)
    if sole and isinstance(value, str):
        repairs.append("bare_text")
        return {sole: value}
    if sole and value is None and text.strip()[:1] not in {"{", "["}:  # the text itself, not wrapped at all
        repairs.append("bare_text")
        return {sole: text}
    got = "text that is no JSON" if value is None else type(value).__name__
    return BadCall("malformed", f"error: arguments: expected a JSON object, got {got}")


def _json(text: str, repairs: list[str]) -> Any:
    """A value, or None for what is none even after closing what is open and cutting what follows."""
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        pass
    start = text.strip()
    if start[:1] not in _CLOSERS:
        return None
    try:
        value, end = json.JSONDecoder(strict=False).raw_decode(start)
    except (ValueError, RecursionError):
        pass
    else:
        if end < len(start):
            repairs.append("trailing_text")
        return value
    try:
        value = json.loads(start + _missing_end(start), strict=False)
    except (ValueError, RecursionError):
        return None
    repairs.append("unclosed")
    return value


def _missing_end(text: str) -> str:
    """The brackets that would close what is open in `text`.

    A value that was cut off in its middle stays open: what is missing of it may be what matters.
    """
    if text[-1] not in '"]}':
        return ""
    stack: list[str] = []
    quoted = escaped = False
    for char in text:
        if escaped:
            escaped = False
        elif quoted and char == "\\":
            escaped = True
        elif char == '"':
            quoted = not quoted
        elif not quoted and char in _CLOSERS:
            stack.append(_CLOSERS[char])
        elif not quoted and stack and char == stack[-1]:
            stack.pop()
    return "" if quoted else "".join(reversed(stack))


def _properties(tool: tools.Tool) -> Mapping[str, Any]:
    found = tool.parameters.get("properties", {})
    return cast("Mapping[str, Any]", found) if isinstance(found, dict) else {}


def _sole_text(tool: tools.Tool) -> str | None:
    """The name of the argument of a tool that takes one text."""
    required = tool.parameters.get("required", [])
    if len(required) != 1 or _properties(tool).get(required[0], {}).get("type") != "string":
        return None
    return str(required[0])


def _rename(tool: tools.Tool, arguments: dict[str, Any], repairs: list[str]) -> dict[str, Any]:
    """One stranger where one required argument is missing, and their names are alike: it was meant."""
    known = _properties(tool)
    strange = [name for name in arguments if name not in known]
    missing = [name for name in tool.parameters.get("required", []) if name not in arguments]
    if len(strange) != 1 or len(missing) != 1:
        return arguments
    likeness = difflib.SequenceMatcher(None, strange[0].lower(), missing[0]).ratio()
    if likeness < _SURE_ARGUMENT and not missing[0].startswith(strange[0].lower()):
        return arguments
    repairs.append("argument_name")
    return {missing[0] if name == strange[0] else name: value for name, value in arguments.items()}


def _convert(tool: tools.Tool, arguments: dict[str, Any], repairs: list[str]) -> dict[str, Any]:
    """Values whose type is another form of the one asked for: 5 for "5", "true" for true, a list in quotes."""
    converted = dict(arguments)
    for name, value in arguments.items():
        wanted = _properties(tool).get(name, {}).get("type")
        other = _as(wanted, value)
        if other is not None:
            converted[name] = other
            repairs.append("type")
    return converted


def _as(wanted: object, value: Any) -> Any:
    """`value` in the wanted type, or None if it is of that type already or has no such form."""
    if wanted == "string":
        if isinstance(value, bool | int | float):
            return json.dumps(value)
        lines = cast("list[Any]", value) if isinstance(value, list) else []
        return "\n".join(lines) if lines and all(isinstance(line, str) for line in lines) else None
    if not isinstance(value, str) or wanted not in {"integer", "number", "boolean", "array", "object"}:
        return None
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return None
    fits = {
        "integer": isinstance(found, int) and not isinstance(found, bool),
        "number": isinstance(found, int | float) and not isinstance(found, bool),
        "boolean": isinstance(found, bool),
        "array": isinstance(found, list),
        "object": isinstance(found, dict),
    }
    return found if fits[str(wanted)] else None


def told(repairs: Sequence[str]) -> str:
    """What the policy is told of a repair; empty without one."""
    return f"[call repaired: {', '.join(repairs)}]" if repairs else ""


@dataclass(slots=True)
class _Breaker:
    """Counts the host's failures of one tool in a row. Mutable."""

    failures: int = 0
    open_until: float = field(default=float("-inf"))

    def failed(self, now: float) -> None:
        self.failures += 1
        if self.failures >= _BREAK_AFTER:
            self.open_until = now + _BREAK_S

    def worked(self) -> None:
        self.failures = 0


class Gateway:
    """Runs checked calls. One per service: its breakers see every session."""

    def __init__(self, clock: Clock, pause: Callable[[float], Awaitable[None]] | None = None) -> None:
        """`pause` waits between two attempts; the clock's sleep by default."""
        self._clock = clock
        self._pause = pause or clock.sleep
        self._breakers: dict[tuple[str, str], _Breaker] = {}

    def open(self, scope: str, tool: tools.Tool) -> bool:
        """Whether a tool of this environment is not tried for a while."""
        breaker = self._breakers.get((scope, tool.name))
        return breaker is not None and self._clock.monotonic() < breaker.open_until

    async def call(self, scope: str, sandbox: Sandbox, call: Checked, limits: Limits) -> CommandResult:
        """Run a call of environment `scope`. Raises Unavailable where no text was declared to stand in for the tool."""
        breaker = self._breakers.setdefault((scope, call.tool.name), _Breaker())
        if self.open(scope, call.tool):
            return self._degrade(call, Unavailable(f"tool {call.tool.name!r} has failed too often"))
        try:
            result = await self._attempts(sandbox, call, limits)
        except Unavailable as error:
            breaker.failed(self._clock.monotonic())
            return self._degrade(call, error)
        breaker.worked()
        return result

    async def _attempts(self, sandbox: Sandbox, call: Checked, limits: Limits) -> CommandResult:
        """Reading again is harmless; running a command again is not, since the first may have had its effect."""
        attempts = _ATTEMPTS if tools.idempotent(call.tool, call.arguments) and sandbox.alive else 1
        for attempt in range(attempts):
            try:
                return await tools.run(sandbox, call.tool, call.arguments, limits)
            except Unavailable:
                if attempt + 1 == attempts or not sandbox.alive:
                    raise
            await self._pause(_PAUSE_S * 2**attempt)
        raise Unavailable("no attempt was made")

    def _degrade(self, call: Checked, error: Unavailable) -> CommandResult:
        if not call.tool.degrade:
            raise error
        return CommandResult(Outcome.OK, error=call.tool.degrade)
