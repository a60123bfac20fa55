"""Tool calls in what a model writes: told apart from its words as the text streams by.

Hermes style is ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, any number of them; ``temper_chat.json``
models open a call with a role token and end it with their turn. What looks like a call and is none (broken JSON, a
tool that was not offered) stays text: it is the client's to judge, and nothing is lost.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from temper.rollout.calls import Call, Tool, ToolBox
from temper.rollout.chat import CallSyntax
from temper.rollout.serving.stops import StopWatcher

HERMES_OPEN, HERMES_CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True)
class FoundCall:
    """A call of an offered tool. Example: ``FoundCall("weather", '{"city": "Oslo"}')``."""

    name: str
    """Tool."""
    arguments: str
    """JSON object, as text."""


@dataclass(frozen=True, slots=True)
class CallStyle:
    """How calls of one request are recognised."""

    syntax: CallSyntax
    """Spelling of what is between the marks."""
    opens: str
    """Text that opens a call."""
    closes: str | None
    """Text that closes it; None for the end of the turn."""


class CallReader:
    """Reads one output. ``single`` stops after the first call."""

    def __init__(self, tools: Sequence[Tool], style: CallStyle, *, single: bool) -> None:
        self._box, self._names = ToolBox(tools, style.syntax), {tool.name for tool in tools}
        self._style, self._single = style, single
        self._mark: StopWatcher | None = StopWatcher((style.opens,))
        self._body = ""
        self._blank = self._opening = ""  # white space that belongs to a call if one follows; before this one
        self.calls = 0
        """Calls found so far."""

    @property
    def done(self) -> bool:
        """Whether the output should end here."""
        return self._single and self.calls > 0

    def feed(self, text: str) -> list[str | FoundCall]:
        """Words and calls that more text brings."""
        found: list[str | FoundCall] = []
        while text and not self.done:
            text = self._feed_words(text, found) if self._mark is not None else self._feed_call(text, found)
        return found

    def finish(self) -> list[str | FoundCall]:
        """What was held, now that the output has ended."""
        if self.done:
            return []
        if self._mark is not None:
            rest = self._blank + self._mark.flush()
            return [rest] if rest and not (self.calls and rest.isspace()) else []
        return [self._read(self._body)]

    def _feed_words(self, text: str, found: list[str | FoundCall]) -> str:
        """Words up to an opening mark; returns the text behind it."""
        assert self._mark is not None
        words = self._blank + self._mark.feed(text)
        said = words.rstrip()
        self._blank = words[len(said) :]
        if said:
            found.append(said)
        if self._mark.matched is None:
            return ""
        behind = self._mark.rest
        self._mark, self._body, self._opening = None, "", self._blank
        self._blank = ""
        return behind

    def _feed_call(self, text: str, found: list[str | FoundCall]) -> str:
        """The body of a call up to its close; returns the text behind it."""
        self._body += text
        if self._style.closes is None:
            return ""
        body, closed, behind = self._body.partition(self._style.closes)
        if not closed:
            return ""
        found.append(self._read(body, closed))
        self._mark = StopWatcher((self._style.opens,))
        return behind.lstrip() if self.calls else behind

    def _read(self, body: str, closed: str = "") -> str | FoundCall:
        call = self._read_compact(body) if self._style.syntax == "compact" else self._read_hermes(body)
        if call is None:
            return self._opening + self._style.opens.lstrip("\uf8ff") + body + closed
        self.calls += 1
        return call

    def _read_compact(self, body: str) -> FoundCall | None:
        call = self._box.read(body)
        return (
            FoundCall(call.name, json.dumps(call.arguments, ensure_ascii=False))
            if isinstance(call, Call)
            else None
        )

    def _read_hermes(self, body: str) -> FoundCall | None:
        try:
            value: Any = json.loads(body)
        except (ValueError, RecursionError):
            return None
        if not isinstance(value, dict) or value.get("name") not in self._names:
            return None
        arguments: Any = value.get("arguments", {})
        if isinstance(arguments, str):  # some models write the object as a string
            return FoundCall(value["name"], arguments) if _is_object(arguments) else None
        if not isinstance(arguments, dict):
            return None
        return FoundCall(value["name"], json.dumps(arguments, ensure_ascii=False))


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
