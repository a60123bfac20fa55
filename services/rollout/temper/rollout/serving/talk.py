"""From the messages of a chat to ids, and from what comes back to words and calls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from temper.rollout.calls import Tool
from temper.rollout.serving.calls import HERMES_CLOSE, HERMES_OPEN, CallReader, CallStyle
from temper.rollout.serving.dialogue import CALL_MARK, Dialogue
from temper.rollout.serving.directory import Model
from temper.rollout.serving.schema import ChatBody, ChatMessage, NamedChoice
from temper.runtime.errors import Rejected


@dataclass(frozen=True, slots=True)
class Talk:
    """One chat request, read."""

    prompt: tuple[int, ...]
    """Ids up to where the model goes on, a begun call included."""
    shown: Mapping[int, str]
    """Special tokens that the reader of calls must see."""
    tools: tuple[Tool, ...]
    """What may be called; empty when nothing may."""
    style: CallStyle | None
    """How calls are recognised; None when nothing may be called."""
    begun: str
    """Text of a call that was begun for the model (``tool_choice``)."""
    single: bool
    """Whether the output ends with its first call."""

    def reader(self) -> CallReader | None:
        """A reader for one output."""
        if self.style is None:
            return None
        reader = CallReader(self.tools, self.style, single=self.single)
        reader.feed(self.begun)
        return reader


def read_talk(body: ChatBody, model: Model) -> Talk:
    """Raises ``Rejected`` naming the message at fault."""
    dialogue = model.dialogue
    if dialogue is None:
        raise Rejected(
            "this model has no chat template",
            field="messages",
            hint="use /v1/completions, or add chat_template.jinja",
        )
    messages = [_message(each, number) for number, each in enumerate(body.messages)]
    offered = body.tools if body.tools and body.tool_choice != "none" else []
    described = [each.model_dump(exclude_none=True) for each in offered]
    ids = dialogue.write(messages, described)
    if not offered:
        return Talk(tuple(ids), {}, (), None, "", single=False)
    tools = tuple(
        Tool(each.function.name, each.function.parameters or {"type": "object"}) for each in offered
    )
    style = _style(dialogue)
    begun, begun_ids = _begin(body, model, dialogue, style)
    forced = isinstance(body.tool_choice, NamedChoice)
    single = forced or body.parallel_tool_calls is False
    return Talk((*ids, *begun_ids), dialogue.shown, tools, style, begun, single=single)


def _style(dialogue: Dialogue) -> CallStyle:
    if dialogue.shown:
        return CallStyle(dialogue.syntax, CALL_MARK, None)
    return CallStyle(dialogue.syntax, HERMES_OPEN, HERMES_CLOSE)


def _begin(body: ChatBody, model: Model, dialogue: Dialogue, style: CallStyle) -> tuple[str, list[int]]:
    """The beginning of a call that ``tool_choice`` demands, as text and as ids behind the prompt."""
    choice = body.tool_choice
    if choice in (None, "auto", "none"):
        return "", []
    named = json.dumps(choice.function.name) if isinstance(choice, NamedChoice) else None
    if style.syntax == "hermes":
        inside = '{"name": "' if named is None else f'{{"name": {named}, "arguments": '
        if style.opens == HERMES_OPEN:
            inside = "\n" + inside
    else:
        inside = "" if named is None or _needs_no_name(body) else f"{json.loads(named)} "
    if style.closes is None:
        (call_id,) = dialogue.shown
        return style.opens + inside, [call_id, *model.encode(inside, special=False)]
    return style.opens + inside, model.encode(style.opens + inside, special=False)


def _needs_no_name(body: ChatBody) -> bool:
    """Whether a compact call leaves the name out: there is one tool and it takes one text, as in :class:`ToolBox`."""
    tools = body.tools or []
    return len(tools) == 1 and Tool("", tools[0].function.parameters or {}).sole_text is not None


def _message(message: ChatMessage, number: int) -> Mapping[str, Any]:
    """In the form that templates expect: contents as text, arguments of earlier calls as objects."""
    where = f"messages[{number}]"
    if message.content is None and not (message.role == "assistant" and message.tool_calls):
        raise Rejected("content must be given", field=f"{where}.content")
    if message.tool_calls and message.role != "assistant":
        raise Rejected("only an assistant makes calls", field=f"{where}.tool_calls")
    if (message.role == "tool") != (message.tool_call_id is not None):
        raise Rejected(
            "tool_call_id belongs to messages of role tool, and they need it", field=f"{where}.tool_call_id"
        )
    content = message.content
    text = content if isinstance(content, str) else "".join(part.text for part in content or ())
    written: dict[str, Any] = {
        "role": "system" if message.role == "developer" else message.role,
        "content": text,
    }
    if message.name is not None:
        written["name"] = message.name
    if message.tool_call_id is not None:
        written["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        written["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function.name, "arguments": arguments},
            }
            for call, arguments in zip(message.tool_calls, _arguments(message, where), strict=True)
        ]
    return written


def _arguments(message: ChatMessage, where: str) -> Sequence[Any]:
    """Arguments as objects: templates write them with ``tojson``, which would quote a text once more."""
    found: list[Any] = []
    for number, call in enumerate(message.tool_calls or ()):
        field = f"{where}.tool_calls[{number}].function.arguments"
        try:
            value: Any = json.loads(call.function.arguments or "{}")
        except (ValueError, RecursionError) as broken:
            raise Rejected(f"not JSON: {broken}", field=field) from None
        if not isinstance(value, dict):
            raise Rejected("must be a JSON object", field=field)
        found.append(value)
    return found
