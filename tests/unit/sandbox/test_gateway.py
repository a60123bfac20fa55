import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from temper.runtime.clock import FakeClock
from temper.runtime.errors import Exhausted, Rejected, Unavailable
from temper.sandbox import gateway, tools
from temper.sandbox.engine.base import CommandResult, Limits, Outcome
from temper.sandbox.engine.fake import FakeBackend
from temper.sandbox.gateway import BadCall, Checked

LIMITS = Limits()
ALL = (tools.PYTHON, tools.SHELL, tools.FILES, tools.SUBMIT)
COUNT = tools.Tool(
    "count",
    tools.Kind.PYTHON,
    "Count.",
    {
        "type": "object",
        "required": ["times"],
        "additionalProperties": False,
        "properties": {
            "times": {"type": "integer"},
            "loud": {"type": "boolean"},
            "names": {"type": "array"},
            "more": {"type": "object"},
            "ratio": {"type": "number"},
        },
    },
)


@pytest.mark.parametrize("tool", [*ALL, COUNT])
def test_every_schema_is_one(tool: tools.Tool) -> None:
    Draft202012Validator.check_schema(dict(tool.parameters))


def test_a_correct_call_is_taken_as_it_is() -> None:
    assert gateway.read(ALL, "python", '{"code": "1"}') == Checked(tools.PYTHON, {"code": "1"})


@pytest.mark.parametrize(
    ("name", "text", "arguments", "repairs"),
    [
        ("python", '```json\n{"code": "1"}\n```', {"code": "1"}, ("fence",)),
        ("python", '{"code": "print(1)"', {"code": "print(1)"}, ("unclosed",)),
        ("python", '{"code": "[1, {"', {"code": "[1, {"}, ("unclosed",)),
        ("count", '{"times": 1, "names": ["a"', {"times": 1, "names": ["a"]}, ("unclosed",)),
        ("python", '{"code": "1"} hope this helps', {"code": "1"}, ("trailing_text",)),
        ("python", '{"code": "a\nb"}', {"code": "a\nb"}, ()),
        ("Python", '{"code": "1"}', {"code": "1"}, ("tool_name",)),
        ("functions.python", '{"code": "1"}', {"code": "1"}, ("tool_name",)),
        ("pyhton", '{"code": "1"}', {"code": "1"}, ("tool_name",)),
        ("python", '{"cod": "1"}', {"code": "1"}, ("argument_name",)),
        ("shell", '{"cmd": "ls"}', {"command": "ls"}, ("argument_name",)),
        ("python", "print(1)", {"code": "print(1)"}, ("bare_text",)),
        ("python", '"print(1)"', {"code": "print(1)"}, ("bare_text",)),
        ("python", '{"code": 5}', {"code": "5"}, ("type",)),
        ("python", '{"code": ["a = 1", "a"]}', {"code": "a = 1\na"}, ("type",)),
        ("count", '{"times": "3"}', {"times": 3}, ("type",)),
        ("count", '{"times": 3, "loud": "true"}', {"times": 3, "loud": True}, ("type",)),
        ("count", '{"times": 3, "names": "[1]"}', {"times": 3, "names": [1]}, ("type",)),
        ("count", '{"times": 3, "more": "{}", "ratio": ".5"}', None, ()),
    ],
)
def test_form_is_repaired_and_said(
    name: str, text: str, arguments: Mapping[str, Any] | None, repairs: tuple[str, ...]
) -> None:
    call = gateway.read((*ALL, COUNT), name, text)
    if arguments is None:
        assert isinstance(call, BadCall)
        return
    assert isinstance(call, Checked)
    assert (call.arguments, call.repairs) == (arguments, repairs)
    assert bool(gateway.told(call.repairs)) == bool(repairs)


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("rm", "{}", "unknown_tool"),
        ("", "{}", "unknown_tool"),
        ("python", "{}", "invalid_args"),
        ("python", '{"x": "1", "y": "2"}', "invalid_args"),
        ("python", '{"code": null}', "invalid_args"),
        ("python", "[1, 2]", "malformed"),
        ("python", "7", "malformed"),
        ("count", '{"times": 1', "malformed"),
        ("shell", '{"command": "rm -rf /work/ol', "malformed"),
        ("python", "[" * 100_000, "malformed"),
        ("files", "just text", "malformed"),
        ("files", '{"op": "read"}', "invalid_args"),
        ("files", '{"op": "format"}', "invalid_args"),
        ("count", '{"times": "many"}', "invalid_args"),
        ("count", '{"times": true}', "invalid_args"),
        ("count", '{"times": "true"}', "invalid_args"),
    ],
)
def test_what_cannot_be_repaired_is_an_observation(name: str, text: str, kind: str) -> None:
    call = gateway.read((*ALL, COUNT), name, text)
    assert isinstance(call, BadCall)
    assert call.kind == kind
    assert call.observation.startswith("error: ")
    assert len(call.observation) < 400


def test_an_unknown_tool_is_answered_with_those_there_are() -> None:
    call = gateway.read(ALL, "browser", "{}")
    assert isinstance(call, BadCall)
    assert call.observation == "error: no tool 'browser'; known: files, python, shell, submit"


@given(st.text(max_size=30), st.text(max_size=60) | st.from_regex(r"[\[{\"\\]{0,20}[a-z:,]{0,9}[\]}\"]{0,9}"))
def test_whatever_a_policy_writes_is_a_call_that_fits_or_an_observation(name: str, text: str) -> None:
    for offered in ((), ALL, (COUNT,)):
        call = gateway.read(offered, name, text)
        if isinstance(call, Checked):
            Draft202012Validator(dict(call.tool.parameters)).validate(dict(call.arguments))
        else:
            assert call.kind in {"malformed", "unknown_tool", "invalid_args"}


@given(st.dictionaries(st.sampled_from(["code"]), st.text(max_size=40), min_size=1))
def test_a_call_that_was_cut_off_is_never_given_a_value_it_did_not_have(arguments: dict[str, str]) -> None:
    text = json.dumps(arguments)
    for end in range(1, len(text)):
        call = gateway.read((tools.PYTHON,), "python", text[:end])
        if isinstance(call, Checked) and "bare_text" not in call.repairs:
            assert call.arguments == arguments


class Scripted:
    """A sandbox whose host fails as often as it is told to."""

    alive = True

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.calls = 0

    async def _answer(self) -> None:
        self.calls += 1
        if self.calls <= self.failures:
            raise Unavailable("the host is late")

    async def python(self, code: str, limits: Limits) -> CommandResult:
        await self._answer()
        return CommandResult(Outcome.OK, stdout=b"ok\n")

    async def get_file(self, path: str, max_bytes: int) -> tuple[bytes, bool]:
        await self._answer()
        if path == "none":
            raise Rejected("no such file", field="path")
        return b"content", False

    async def put_file(self, path: str, content: bytes, mode: int = 0o644) -> None:
        raise Exhausted("the sandbox's disk is full")


def made(clock: FakeClock) -> tuple[gateway.Gateway, list[float]]:
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    return gateway.Gateway(clock, pause), pauses


async def call(gate: gateway.Gateway, sandbox: Any, name: str, **arguments: Any) -> CommandResult:
    checked = gateway.read(ALL, name, json.dumps(arguments))
    assert isinstance(checked, Checked)
    return await gate.call("env@1", sandbox, checked, LIMITS)


async def test_reading_is_tried_again_with_growing_pauses() -> None:
    gate, pauses = made(FakeClock())
    sandbox = Scripted(2)
    assert (await call(gate, sandbox, "files", op="read", path="a")).stdout == b"content"
    assert sandbox.calls == 3
    assert pauses == [0.1, 0.2]


async def test_reading_is_not_tried_for_ever() -> None:
    gate, _ = made(FakeClock())
    sandbox = Scripted(99)
    with pytest.raises(Unavailable):
        await call(gate, sandbox, "files", op="read", path="a")
    assert sandbox.calls == 3


async def test_a_command_that_may_have_had_its_effect_is_not_run_again() -> None:
    gate, _ = made(FakeClock())
    sandbox = Scripted(1)
    with pytest.raises(Unavailable):
        await call(gate, sandbox, "python", code="1")
    assert sandbox.calls == 1


async def test_the_agents_own_mistakes_are_results() -> None:
    gate, _ = made(FakeClock())
    assert (await call(gate, Scripted(0), "files", op="read", path="none")).error == "error: no such file"
    full = await call(gate, Scripted(0), "files", op="write", path="a", content="x")
    assert (full.outcome, tools.is_error(full)) == (Outcome.DISK_FULL, True)


async def test_a_tool_with_a_degrade_path_says_it_and_never_fails() -> None:
    gate, _ = made(FakeClock())
    tool = replace(tools.PYTHON, degrade="python is away; reason without it")
    result = await gate.call("env@1", Scripted(99), Checked(tool, {"code": "1"}), LIMITS)  # type: ignore[arg-type]  # has what python needs
    assert result.error == "python is away; reason without it"
    assert tools.is_error(result)


async def test_after_five_failures_in_a_row_a_tool_rests_for_half_a_minute() -> None:
    clock = FakeClock()
    gate, _ = made(clock)
    sandbox = Scripted(5)
    for _ in range(6):
        with pytest.raises(Unavailable):
            await call(gate, sandbox, "python", code="1")
    assert sandbox.calls == 5
    assert gate.open("env@1", tools.PYTHON)
    assert not gate.open("other@1", tools.PYTHON)
    await clock.advance(31)
    assert (await call(gate, sandbox, "python", code="1")).stdout == b"ok\n"
    assert not gate.open("env@1", tools.PYTHON)


async def test_files_can_be_written_and_read_back() -> None:
    sandbox = await FakeBackend().create("a", LIMITS)
    gate, _ = made(FakeClock())
    assert (await call(gate, sandbox, "files", op="write", path="a", content="é")).stdout == b"wrote 2 bytes"
    assert (await call(gate, sandbox, "files", op="read", path="a")).stdout == "é".encode()
    refused = await call(gate, sandbox, "files", op="read", path="../etc/passwd")
    assert refused.error is not None
