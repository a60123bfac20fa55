"""Calls in a stream of text: told apart from words for any chopping, and nothing that is no call is lost."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from temper.rollout.calls import Tool
from temper.rollout.serving.calls import CallReader, CallStyle, FoundCall

HERMES = CallStyle("hermes", "<tool_call>", "</tool_call>")
TOOLS = (Tool("add", {"type": "object"}), Tool("say", {"type": "object", "required": ["text"]}))


def read(
    text: str, sizes: list[int], *, single: bool = False, style: CallStyle = HERMES
) -> list[str | FoundCall]:
    reader, found, at = CallReader(TOOLS, style, single=single), list[str | FoundCall](), 0
    while text:
        size = sizes[at % len(sizes)]
        found += reader.feed(text[:size])
        text, at = text[size:], at + 1
    found += reader.finish()
    joined: list[str | FoundCall] = []
    for each in found:  # words in a row are one
        if isinstance(each, str) and joined and isinstance(joined[-1], str):
            joined[-1] += each
        else:
            joined.append(each)
    return joined


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


chops = st.lists(st.integers(1, 9), min_size=1, max_size=5)


@given(chops)
def test_words_then_calls_for_any_chopping(sizes: list[int]) -> None:
    text = f"Let me see. \n{call('add', a=1)}\n{call('say', text='<b>')}\n"
    assert read(text, sizes) == [
        "Let me see.",
        FoundCall("add", '{"a": 1}'),
        FoundCall("say", '{"text": "<b>"}'),
    ]


@given(chops, st.text(alphabet="<>tol_ca/ \n", max_size=30))
def test_text_without_a_whole_mark_comes_back_as_it_was(sizes: list[int], text: str) -> None:
    assert "".join(each for each in read(text, sizes) if isinstance(each, str)) == text


@pytest.mark.parametrize(
    "body", ["{broken", '{"name": "fly", "arguments": {}}', '{"name": "add", "arguments": [1]}', "[]", "7"]
)
@pytest.mark.parametrize("closed", ["</tool_call>", ""])
def test_what_is_no_call_stays_text(body: str, closed: str) -> None:
    text = f"well <tool_call>{body}{closed}"
    assert "".join(each for each in read(text, [3]) if isinstance(each, str)) == text


def test_a_call_that_the_turn_ends_without_closing_counts() -> None:
    assert read('<tool_call>{"name": "add", "arguments": {}}', [4]) == [FoundCall("add", "{}")]


def test_arguments_written_as_a_text_are_taken_as_they_are() -> None:
    text = '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>'
    assert read(text, [5]) == [FoundCall("add", '{"a": 1}')]


def test_single_ends_after_the_first_call() -> None:
    assert read(call("add", a=1) + call("add", a=2) + "more", [4], single=True) == [
        FoundCall("add", '{"a": 1}')
    ]


def test_a_compact_call_lasts_until_the_turn_ends() -> None:
    style = CallStyle("compact", "<call>", None)
    assert read('hm <call>add {"a": 1}', [2], style=style) == ["hm", FoundCall("add", '{"a": 1}')]
    assert read("<call>fly away", [2], style=style) == ["<call>fly away"]
