import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.rollout.world import PYTHON_SCHEMA

from temper.api.sandbox.v1.sandbox_pb2 import ToolCall
from temper.rollout.calls import BadCall, Call, Said, Tool, ToolBox, tool_box
from temper.runtime.errors import Rejected

UNHURRIED = settings(deadline=None, max_examples=60)  # a busy machine is no failure
PYTHON = Tool("python", PYTHON_SCHEMA)
SHELL = Tool(
    "shell", {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
)
MOVE = Tool(
    "move",
    {
        "type": "object",
        "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
        "required": ["x", "y"],
        "additionalProperties": False,
    },
)


def test_the_name_of_a_sole_text_tool_may_be_left_out():
    box = ToolBox([PYTHON], "compact")
    assert box.read("1 + 1") == Call("python", {"code": "1 + 1"})
    assert box.read("python 1 + 1") == Call("python", {"code": "1 + 1"})
    assert box.write("python", {"code": "1 + 1"}) == "1 + 1"


def test_several_tools_are_told_apart_by_name():
    box = ToolBox([PYTHON, SHELL], "compact")
    assert box.read("shell ls -l") == Call("shell", {"command": "ls -l"})
    assert box.write("shell", {"command": "ls"}) == "shell ls"


def test_arguments_of_other_shapes_are_json():
    box = ToolBox([MOVE], "compact")
    assert box.read('move {"x": 1, "y": 2}') == Call("move", {"x": 1, "y": 2})
    assert box.read(box.write("move", {"x": 3, "y": 4})) == Call("move", {"x": 3, "y": 4})


def test_hermes_is_an_object_with_name_and_arguments():
    box = ToolBox([PYTHON, MOVE], "hermes")
    assert box.read('{"name": "python", "arguments": {"code": "1"}}') == Call("python", {"code": "1"})
    assert box.read(box.write("move", {"x": 1, "y": 2})) == Call("move", {"x": 1, "y": 2})


@pytest.mark.parametrize("syntax", ["compact", "hermes"])
@UNHURRIED
@given(text=st.text(max_size=60))
def test_what_is_written_is_read_back(syntax, text: str):
    for tools in ([PYTHON], [PYTHON, SHELL]):
        box = ToolBox(tools, syntax)
        assert box.read(box.write("python", {"code": text})) == Call("python", {"code": text})


@pytest.mark.parametrize(
    ("syntax", "text", "outcome", "words"),
    [
        ("compact", "fly away", "unknown_tool", "no tool 'fly'; known: move, python"),
        ("compact", "pyton 1", "unknown_tool", "no tool 'pyton'; known: python"),
        ("compact", "move here", "malformed", "expected a JSON object"),
        ("compact", "move [1]", "malformed", "got list"),
        ("compact", 'move {"x": "a", "y": 2}', "invalid_args", "x: 'a' is not of type 'integer'"),
        ("compact", 'move {"x": 1}', "invalid_args", "'y' is a required property"),
        ("compact", "move " + "[" * 100_000, "malformed", "expected a JSON object"),
        ("hermes", "1+1", "malformed", "expected a JSON object"),
        ("hermes", '{"name": 3}', "malformed", "name"),
        ("hermes", '{"name": "fly"}', "unknown_tool", "no tool 'fly'"),
    ],
)
def test_a_bad_call_is_an_observation(syntax, text: str, outcome: str, words: str):
    found = ToolBox([MOVE, PYTHON], syntax).read(text)
    assert isinstance(found, BadCall)
    assert found.outcome == outcome
    assert words in found.observation
    assert len(found.observation) < 300


@UNHURRIED
@given(st.text(max_size=80))
def test_reading_never_fails(text: str):
    for syntax in ("compact", "hermes"):
        for tools in ([], [PYTHON], [MOVE], [PYTHON, MOVE]):
            assert isinstance(ToolBox(tools, syntax).read(text), (Call, BadCall))
            said = ToolBox(tools, syntax).parse(text)
            assert (
                isinstance(said, BadCall) or ToolCall(name=said.name, arguments_json=said.arguments_json).name
            )


def test_an_environment_without_tools_says_so():
    found = ToolBox([], "compact").read("python 1")
    assert isinstance(found, BadCall)
    assert "no tools" in found.observation


def test_a_schema_that_is_none_is_refused():
    with pytest.raises(Rejected, match="not JSON"):
        tool_box((("t", "{"),), "compact")
    with pytest.raises(Rejected, match="schema"):
        tool_box((("t", "[]"),), "compact")
    with pytest.raises(Rejected, match="schema"):
        ToolBox([Tool("t", {"type": "nonsense"})], "compact")


@pytest.mark.parametrize(
    ("syntax", "text", "said"),
    [
        ("compact", "python 1 + 1", Said("python", '{"code":"1 + 1"}')),
        ("compact", 'move {"x": "1"', Said("move", '{"x": "1"')),
        ("compact", "moev here", Said("moev", "here")),
        ("compact", "fly", Said("fly", "")),
        ("hermes", '{"name": "fly", "arguments": {"b": 1, "a": "2"}}', Said("fly", '{"a":"2","b":1}')),
        ("hermes", '{"name": "move", "arguments": "{\\"x\\": 1"}', Said("move", '{"x": 1')),
        ("hermes", '{"name": "a\\ud800", "arguments": "\\udfff"}', Said("a?", "?")),
    ],
)
def test_an_episodes_call_is_taken_apart_and_not_judged(syntax, text: str, said: Said):
    assert ToolBox([MOVE, PYTHON], syntax).parse(text) == said


@pytest.mark.parametrize(
    ("syntax", "text"),
    [
        ("compact", " x"),
        ("hermes", "1+1"),
        ("hermes", '{"name": ""}'),
        ("hermes", '{"name": "a", "arguments": 3}'),
    ],
)
def test_only_what_has_no_syntax_is_bad_here(syntax, text: str):
    found = ToolBox([MOVE, PYTHON], syntax).parse(text)
    assert isinstance(found, BadCall)
    assert found.outcome == "malformed"
