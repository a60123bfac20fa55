"""Tool calls as text: written, and read in either of two ways.

An episode's calls are only taken apart (`parse`): whether the tool exists and its arguments fit is for the gateway of the
sandbox service to say, which repairs what is a matter of form. A client's calls, which nobody runs here, are also checked
against the tool's schema (`read`). What is wrong with a call becomes an observation for the policy, never an error of the
service: the text is short and stable (where, what was expected, what was there), so that a policy can learn from it.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, best_match

from temper.rollout.chat import CallSyntax
from temper.runtime.errors import Rejected


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool offered to the policy."""

    name: str
    """Name it is called by."""
    schema: Mapping[str, Any]
    """JSON Schema (2020-12) of the arguments object."""

    @property
    def sole_text(self) -> str | None:
        """The one required property, if there is exactly one and it is a string."""
        required: Sequence[str] = self.schema.get("required", ())
        properties: Mapping[str, Any] = self.schema.get("properties", {})
        if len(required) == 1 and properties.get(required[0], {}).get("type") == "string":
            return required[0]
        return None


@dataclass(frozen=True, slots=True)
class Call:
    """A call that may be executed."""

    name: str
    """Tool."""
    arguments: Mapping[str, Any]
    """Valid against its schema."""

    @property
    def arguments_json(self) -> str:
        """Canonical JSON."""
        return json.dumps(self.arguments, sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Said:
    """A call as the policy wrote it: whole, but not checked. Both texts can go over the wire."""

    name: str
    """What is called."""
    arguments_json: str
    """Its arguments; perhaps no JSON."""


@dataclass(frozen=True, slots=True)
class BadCall:
    """A call that is not executed."""

    name: str
    """Tool it seems to mean; may be empty."""
    outcome: str
    """``malformed``, ``unknown_tool`` or ``invalid_args``."""
    observation: str
    """What the policy is shown."""


class ToolBox:
    """The tools of one environment, in one call syntax."""

    def __init__(self, tools: Sequence[Tool], syntax: CallSyntax) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._validators = {tool.name: _validator(tool) for tool in tools}
        self._syntax = syntax
        # With one tool that takes one text the name carries no information and may be left out.
        self._default = tools[0] if len(tools) == 1 and tools[0].sole_text else None

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        """TOOL_TEXT of a call, as short as the syntax allows."""
        if self._syntax == "hermes":
            return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
        tool = self._tools.get(name)
        sole = tool.sole_text if tool else None
        if sole and set(arguments) == {sole}:
            payload = str(arguments[sole])
            return (
                payload
                if self._default is tool and not payload.startswith(f"{name} ")
                else f"{name} {payload}"
            )
        return f"{name} {json.dumps(arguments, ensure_ascii=False)}"

    def parse(self, text: str) -> Said | BadCall:
        """The call in TOOL_TEXT as it was written; bad only if the syntax gives no name or no arguments."""
        return self._parse_hermes(text) if self._syntax == "hermes" else self._parse_compact(text)

    def _parse_compact(self, text: str) -> Said | BadCall:
        name, _, payload = text.partition(" ")
        tool = self._tools.get(name)
        if tool is None and self._default is not None:
            tool, payload = self._default, text
        if tool is not None and tool.sole_text:
            return _said(tool.name, json.dumps({tool.sole_text: payload}, separators=(",", ":")))
        if not name:
            return BadCall("", "malformed", "error: call: expected the name of a tool")
        return _said(name, payload)

    def _parse_hermes(self, text: str) -> Said | BadCall:
        found = _json_object("", text)
        if isinstance(found, BadCall):
            return found
        name, arguments = found[1].get("name"), found[1].get("arguments", {})
        if not isinstance(name, str) or not name or not isinstance(arguments, dict | str):
            return BadCall("", "malformed", 'error: call: expected {"name": string, "arguments": object}')
        if isinstance(arguments, str):  # some models write the object as a string
            return _said(name, arguments)
        return _said(name, json.dumps(arguments, sort_keys=True, separators=(",", ":")))

    def read(self, text: str) -> Call | BadCall:
        """The call in TOOL_TEXT, checked."""
        found = self._read_hermes(text) if self._syntax == "hermes" else self._read_compact(text)
        if isinstance(found, BadCall):
            return found
        name, arguments = found
        problem = best_match(self._validators[name].iter_errors(arguments))
        if problem is not None:
            where = ".".join(str(part) for part in problem.absolute_path) or "arguments"
            return BadCall(name, "invalid_args", f"error: {where}: {problem.message[:200]}")
        return Call(name, arguments)

    def _read_compact(self, text: str) -> tuple[str, Mapping[str, Any]] | BadCall:
        name, _, payload = text.partition(" ")
        tool = self._tools.get(name)
        if tool is None and self._default is not None:
            tool, payload = self._default, text
        if tool is None:
            return self._unknown(name)
        if tool.sole_text:
            return tool.name, {tool.sole_text: payload}
        return _json_object(tool.name, payload)

    def _read_hermes(self, text: str) -> tuple[str, Mapping[str, Any]] | BadCall:
        found = _json_object("", text)
        if isinstance(found, BadCall):
            return found
        name, arguments = found[1].get("name"), found[1].get("arguments", {})
        if not isinstance(name, str) or not isinstance(arguments, dict):
            return BadCall("", "malformed", 'error: call: expected {"name": string, "arguments": object}')
        return (name, arguments) if name in self._tools else self._unknown(name)

    def _unknown(self, name: str) -> BadCall:
        near = difflib.get_close_matches(name, self._tools, n=1) or sorted(self._tools)[:8]
        known = f"; known: {', '.join(near)}" if near else "; there are no tools here"
        return BadCall(name[:64], "unknown_tool", f"error: no tool {name[:64]!r}{known}")


@lru_cache(
    maxsize=64
)  # a job asks for the same few tools with every group, and checking a schema takes milliseconds
def tool_box(specs: tuple[tuple[str, str], ...], syntax: CallSyntax) -> ToolBox:
    """The tools described by pairs of name and schema (JSON text). Raises ``Rejected`` for a schema that is none."""
    tools: list[Tool] = []
    for name, text in specs:
        try:
            schema: Any = json.loads(text or "{}")
        except ValueError as broken:
            raise Rejected(f"tool {name}: the schema of its arguments is not JSON: {broken}") from None
        tools.append(Tool(name, schema))
    return ToolBox(tools, syntax)


def _validator(tool: Tool) -> Draft202012Validator:
    try:
        Draft202012Validator.check_schema(tool.schema)
    except SchemaError as broken:
        raise Rejected(
            f"tool {tool.name}: the schema of its arguments is invalid: {broken.message}"
        ) from None
    return Draft202012Validator(tool.schema)


def _said(name: str, arguments: str) -> Said:
    """A lone surrogate has no bytes; all else is unchanged."""
    return Said(*(each.encode(errors="replace").decode() for each in (name, arguments)))


def _json_object(name: str, text: str) -> tuple[str, Mapping[str, Any]] | BadCall:
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return BadCall(name, "malformed", "error: arguments: expected a JSON object")
    if not isinstance(value, dict):
        return BadCall(
            name, "malformed", f"error: arguments: expected a JSON object, got {type(value).__name__}"
        )
    return name, value
