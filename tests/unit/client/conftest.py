from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.unit.client.fakes import FakePlatform, World

from temper.client.cli import invoke

REPOSITORY = Path(__file__).parents[3]


@dataclass(frozen=True)
class Said:
    """What a command did."""

    code: int
    out: str
    err: str


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakePlatform]:
    platform = FakePlatform(tmp_path)
    yield platform
    platform.stop()


@pytest.fixture
def world(fake: FakePlatform) -> World:
    return fake.world


@pytest.fixture
def temper(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    """Runs a command line in this process."""
    for name in ("TEMPER_DATA_DIR", "TEMPER_ENDPOINTS", "TEMPER_TOKEN_FILE", "TEMPER_TLS_CA_FILE"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str) -> Said:
        code = invoke(list(arguments))
        said = capsys.readouterr()
        return Said(code, said.out, said.err)

    return run


@pytest.fixture
def ask(temper: Callable[..., Said], fake: FakePlatform) -> Callable[..., Said]:
    """Runs a command line against the fake platform."""
    return lambda *arguments: temper(*arguments, *fake.options)


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """A directory that looks like a policy."""
    directory = tmp_path / "policy"
    directory.mkdir()
    (directory / "config.json").write_text('{"vocab_size": 264}')
    (directory / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0, "b": 263}}, "added_tokens": []}')
    (directory / "temper_chat.json").write_text("{}")
    (directory / "model.safetensors").write_bytes(b"weights")
    return directory


@pytest.fixture
def job_file(tmp_path: Path, policy: Path) -> Path:
    """A small valid job file beside its policy."""
    path = tmp_path / "job.toml"
    path.write_text(JOB)
    return path


JOB = """
name = "trial"
policy = { checkpoint = "policy" }

[[domain]]
name = "calc"
env = "calc"

[[phase]]
name = "rl"
algorithm = "grpo"
steps = 3
optimizer = { lr = 3e-4 }
"""
