"""How a conversation is written for a model: a Jinja template of its authors, or ``temper_chat.json``.

A template runs in Jinja's immutable sandbox with the few extras that Hugging Face gives it (``tojson`` without HTML
escapes, ``raise_exception``, ``strftime_now``, ``{% generation %}``), so that what is rendered here is what the
model was trained on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from temper.rollout.calls import Tool, ToolBox
from temper.rollout.chat import CallSyntax, read_chat
from temper.rollout.codec import Codec
from temper.runtime.errors import Rejected

Message = Mapping[str, Any]
"""One message in OpenAI's form, contents already flattened to text, arguments of earlier calls read into objects."""


_TEMPLATE_FAULTS = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError)
"""What a template's expressions may raise on messages that its author did not foresee."""


class Dialogue(Protocol):
    """Writes conversations as ids."""

    syntax: CallSyntax
    """How the model spells a tool call."""
    stop_ids: tuple[int, ...]
    """Ids that end a turn."""
    shown: Mapping[int, str]
    """Special tokens that the reader of calls must see, with the text they get."""

    def write(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[int]:
        """Ids up to where the assistant goes on. Raises ``Rejected`` naming the message at fault."""
        ...


class TemplateDialogue:
    """A Jinja chat template and the tokenizer it speaks to."""

    def __init__(self, source: str, side: Mapping[str, Any], tokenizer: Tokenizer) -> None:
        self.syntax: CallSyntax = "hermes"
        self.stop_ids: tuple[int, ...] = ()
        self.shown: Mapping[int, str] = {}
        self._tokenizer = tokenizer
        self._names = {
            key: value.get("content") if isinstance(value, dict) else value
            for key, value in side.items()
            if key.endswith("_token") and isinstance(value, (str, dict))
        }
        try:
            self._template = _environment().from_string(source)
        except TemplateError as broken:
            raise Rejected(f"the chat template does not compile: {broken}", field="chat_template") from None

    def render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> str:
        """The prompt as text."""
        try:
            return self._template.render(
                messages=messages,
                tools=list(tools) or None,
                documents=None,
                add_generation_prompt=True,
                **self._names,
            )
        except (TemplateError, *_TEMPLATE_FAULTS) as refused:
            raise Rejected(f"the model's chat template refuses: {refused}", field="messages") from None

    def write(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[int]:
        return self._tokenizer.encode(self.render(messages, tools), add_special_tokens=False).ids


class TemperDialogue:
    """``temper_chat.json``: role tokens that no text can spell. There is no system role."""

    def __init__(self, codec: Codec, call_id: int, call_mark: str) -> None:
        self._codec = codec
        self.syntax: CallSyntax = codec.call_syntax
        self.stop_ids: tuple[int, ...] = codec.stops
        self.shown: Mapping[int, str] = {call_id: call_mark}

    def write(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[int]:
        box = ToolBox([_tool(each) for each in tools], self.syntax)
        ids: list[int] = []
        for number, message in enumerate(messages):
            where, text = f"messages[{number}]", str(message.get("content") or "")
            if number and message["role"] != "assistant" and messages[number - 1]["role"] != "assistant":
                ids.pop()  # nobody answered: the assistant's turn was not opened
            match message["role"]:
                case "user":
                    ids += self._codec.prompt(text)[0 if number == 0 else 1 :]
                case "tool":
                    ids += self._codec.observation(text)
                case "assistant" if number:
                    ids += self._assistant(message, text, box, where)
                case role:
                    raise Rejected(
                        f"this model has no place for {role!r} here",
                        field=f"{where}.role",
                        hint="it knows user, assistant and tool, and begins with user",
                    )
        if messages[-1]["role"] == "assistant":
            raise Rejected(
                "the last message must be of user or tool", field=f"messages[{len(messages) - 1}].role"
            )
        return ids

    def _assistant(self, message: Message, text: str, box: ToolBox, where: str) -> list[int]:
        calls = message.get("tool_calls") or []
        if len(calls) > 1:
            raise Rejected("this model makes one call per turn", field=f"{where}.tool_calls")
        if not calls:
            return self._codec.answer(text)
        call = calls[0]["function"]
        return self._codec.call(box.write(call["name"], call["arguments"]))


def read_dialogue(path: Path, side: Mapping[str, Any], tokenizer: Tokenizer) -> Dialogue | None:
    """The conversation format of a directory: its own template first, ``temper_chat.json`` where it has none."""
    source = _template_source(path, side)
    if source is not None:
        return TemplateDialogue(source, side, tokenizer)
    try:
        chat = (path / "temper_chat.json").read_bytes()
    except FileNotFoundError:
        return None
    codec = Codec.read({"tokenizer.json": (path / "tokenizer.json").read_bytes(), "temper_chat.json": chat})
    call_id = tokenizer.token_to_id(read_chat(chat).tokens["call"])
    assert call_id is not None, "the codec has looked it up"
    return TemperDialogue(codec, call_id, CALL_MARK)


CALL_MARK = "\uf8ff<call>"
"""Stands for the role token that opens a call; the first character is of a private area, so that text cannot spell it."""


def _template_source(path: Path, side: Mapping[str, Any]) -> str | None:
    try:
        return (path / "chat_template.jinja").read_text()
    except FileNotFoundError:
        found: Any = side.get("chat_template")
    if isinstance(found, list):  # several, by name: the default one, as transformers picks it
        named = {each.get("name"): each.get("template") for each in found if isinstance(each, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None


def _tool(described: Mapping[str, Any]) -> Tool:
    function = described["function"]
    return Tool(function["name"], function.get("parameters") or {"type": "object"})


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    names: dict[str, Any] = environment.globals
    names.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
    return environment


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **more: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **more)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)  # noqa: DTZ005 - local time, as transformers does it


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


class _Generation(Extension):
    """``{% generation %}``: marks the assistant's words for training; here it only has to be let through."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
