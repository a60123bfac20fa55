"""What `temper sandbox mcp` becomes: the service's own command, with every option that was given and no other."""

import os
import sys
from pathlib import Path

import pytest

from temper.client.cli import invoke

OVER_HTTP = ["--http", "0.0.0.0:8765", "--token-file", "/t", "--sessions", "3", "--idle", "60"]
TOLD = ["--http=0.0.0.0:8765", "--token-file=/t", "--sessions=3", "--idle=60.0"]
PLATFORM = ["--bus-url", "nats://127.0.0.1:4222"]


class _Replaced(Exception):  # noqa: N818 - what happens, not a fault
    """The process would be another program now."""


@pytest.fixture
def replaced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []

    def execv(program: str, command: list[str]) -> None:
        assert program == sys.executable
        said.extend(command)
        raise _Replaced

    monkeypatch.setattr(os, "execv", execv)
    monkeypatch.delenv("TEMPER_BUS_TOKEN_FILE", raising=False)
    return said


def become(arguments: list[str]) -> None:
    with pytest.raises(_Replaced):
        invoke(["sandbox", "mcp", *arguments])


def test_with_a_backend_settings_go_along(replaced: list[str]) -> None:
    become(["--backend", "namespaces", "--set", "limits.pids=9", *OVER_HTTP])
    assert replaced[1:4] == ["-m", "temper.sandbox", "mcp"]
    assert replaced[4:] == ["--set", "backend=namespaces", "--set", "limits.pids=9", *TOLD]


def test_on_a_platform_the_brokers_token_and_the_clients_are_kept_apart(
    replaced: list[str], tmp_path: Path
) -> None:
    become([*PLATFORM, *OVER_HTTP])
    assert "--bus-token-file" not in replaced
    assert replaced[-4:] == TOLD
    replaced.clear()
    become([*PLATFORM, "--bus-token-file", str(tmp_path / "bus")])
    assert replaced[-2:] == ["--bus-token-file", str(tmp_path / "bus")]
    assert not any(each.startswith(("--http", "--token-file", "--sessions", "--idle")) for each in replaced)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([*PLATFORM, "--set", "limits.pids=9"], "add --backend"),
        (["--backend", "namespaces", "--lease", "20"], "--lease: a sandbox made here"),
        (["--backend", "namespaces", "--isolation", "vm"], "--isolation: a sandbox made here"),
        (["--backend", "namespaces", "--wall", "5"], "use --set"),
    ],
)
def test_an_option_that_would_have_no_effect_is_refused(
    arguments: list[str], said: str, replaced: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["sandbox", "mcp", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert not replaced


def test_on_a_platform_what_was_asked_for_goes_along(replaced: list[str]) -> None:
    become([*PLATFORM, "--isolation", "vm", "--lease", "20", "--wall", "5"])
    assert replaced[4:] == [*PLATFORM, "--isolation=vm", "--lease=20.0", "--wall=5.0"]
