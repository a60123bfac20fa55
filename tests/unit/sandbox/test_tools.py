import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from temper.runtime.errors import Rejected
from temper.sandbox import gateway, manifest, tools
from temper.sandbox.engine.base import CommandResult, Limits, Outcome
from temper.sandbox.engine.fake import FakeBackend

LIMITS = Limits()


@pytest.mark.parametrize("tool", [tools.PYTHON, tools.SHELL])
def test_a_schema_is_a_schema_with_one_required_string(tool: tools.Tool) -> None:
    Draft202012Validator.check_schema(dict(tool.parameters))
    (required,) = tool.parameters["required"]
    validator = Draft202012Validator(dict(tool.parameters))
    assert validator.is_valid({required: "x"})
    assert not validator.is_valid({required: 1})
    assert not validator.is_valid({})
    assert not validator.is_valid({required: "x", "more": 1})


async def test_a_tool_runs_in_the_sandbox() -> None:
    sandbox = await FakeBackend().create("a", LIMITS)
    assert (await tools.run(sandbox, tools.PYTHON, {"code": "2 + 3"}, LIMITS)).stdout == b"5\n"
    assert (await tools.run(sandbox, tools.SHELL, {"command": "echo a"}, LIMITS)).stdout == b"a\n"


async def test_a_missing_argument_is_refused_by_its_path() -> None:
    sandbox = await FakeBackend().create("a", LIMITS)
    with pytest.raises(Rejected, match=r"call\.arguments_json\.code"):
        await tools.run(sandbox, tools.PYTHON, {"command": "x"}, LIMITS)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("{}", "'op' is a required"),
        ('{"operation": "read"}', "'operation' was unexpected"),
        ('{"op": "read"}', "'path' is a required"),
    ],
)
def test_a_file_operation_is_asked_for_what_it_lacks_itself(arguments: str, told: str) -> None:
    call = gateway.read([tools.FILES], "files", arguments)
    assert isinstance(call, gateway.BadCall)
    assert told in call.observation


async def test_text_that_no_program_can_take_is_the_agents_error() -> None:
    sandbox = await FakeBackend().create("a", LIMITS)
    result = await tools.run(sandbox, tools.SHELL, {"command": "a\0b"}, LIMITS)
    assert tools.is_error(result)
    assert (await tools.run(sandbox, tools.PYTHON, {"code": "'\ud800'"}, LIMITS)).stdout == b"'\\ud800'\n"


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (CommandResult(Outcome.OK, b"42\n"), "42"),
        (CommandResult(Outcome.OK, b"a\n\n", b"b\n", exit_code=2), "a\nb\n[exit code 2]"),
        (CommandResult(Outcome.OK, b"", error="NameError: x"), "NameError: x"),
        (CommandResult(Outcome.OK, b"\xff\x1b[31mred\x1b[0m\x07"), "\ufffdred"),
        (CommandResult(Outcome.OK, b"a\r\nb\tc"), "a\nb\tc"),
        (CommandResult(Outcome.OK, b"x\x1b]3008;secret\x07y\x1b[?2004h"), "xy"),
        (CommandResult(Outcome.TIMED_OUT, b"so far"), "so far\n[timed out after 60 s]"),
        (
            CommandResult(Outcome.OOM_KILLED, interpreter_lost=True),
            "[out of memory: limit 2048 MiB; the interpreter starts afresh]",
        ),
        (CommandResult(Outcome.OK, signal=11), "[killed by signal 11]"),
    ],
)
def test_an_observation_is_text_and_says_what_went_wrong(result: CommandResult, text: str) -> None:
    assert tools.observation(result, LIMITS) == text


@pytest.mark.parametrize("outcome", list(Outcome))
def test_every_outcome_but_ok_is_an_error_and_is_told(outcome: Outcome) -> None:
    result = CommandResult(outcome)
    assert tools.is_error(result) == (outcome is not Outcome.OK)
    assert bool(tools.observation(result, LIMITS)) == (outcome is not Outcome.OK)


@given(st.binary(max_size=200))
def test_any_bytes_become_printable_text(raw: bytes) -> None:
    text = tools.clean(raw)
    text.encode()
    assert not [char for char in text if ord(char) < 32 and char not in "\n\t"]


MANIFEST = """
name = "calc"
version = "1.0.0"
[reward]
min = 0.0
max = 1.0
[limits]
task_s = 2
tool_wall_s = 5.0
tool_memory_bytes = 1000
[[tools]]
name = "python"
[[tools]]
name = "bash"
kind = "shell"
description = "d"
"""


def test_a_manifest_gives_tools_limits_and_the_reward_range(tmp_path: Path) -> None:
    (tmp_path / "env.toml").write_text(MANIFEST)
    read = manifest.read(tmp_path / "env.toml")
    assert (read.entry, read.reward_min, read.reward_max, read.task_s, read.verify_s) == (
        "env.py",
        0.0,
        1.0,
        2.0,
        10.0,
    )
    assert [tool.kind for tool in read.tools] == [tools.Kind.PYTHON, tools.Kind.SHELL]
    assert json.dumps(read.tools[0].parameters) == json.dumps(tools.PYTHON.parameters)
    limits = read.limits(Limits(pids=9))
    assert (limits.wall_s, limits.memory_bytes, limits.pids) == (5.0, 1000, 9)


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        ("max = 1.0", "max = 0.0", "reward"),
        ("max = 1.0", "", "reward.max"),
        ("max = 1.0", "max = true", "reward.max"),
        ('name = "calc"', "name = 1", "name"),
        ('kind = "shell"', 'kind = "telnet"', r"tools\[1\]"),
        ("[limits]", "[runtime]\nentry = '../x.py'\n[limits]", "entry"),
        ("name", "= nonsense", "bundle"),
    ],
)
def test_a_bad_manifest_is_refused_by_the_path_of_its_key(
    tmp_path: Path, old: str, new: str, path: str
) -> None:
    (tmp_path / "env.toml").write_text(MANIFEST.replace(old, new, 1))
    with pytest.raises(Rejected, match=path):
        manifest.read(tmp_path / "env.toml")


def test_a_bundle_without_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match=r"no env\.toml"):
        manifest.read(tmp_path / "env.toml")
