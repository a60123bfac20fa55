from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from temper.runtime.config import Section, ServiceConfig, load, nearest, read_secret
from temper.runtime.errors import Rejected


class PoolConfig(Section):
    size: int = Field(default=2, ge=1)
    names: list[str] = []
    extra: dict[str, int] = {}


class ExampleConfig(ServiceConfig):
    pool: PoolConfig = PoolConfig()
    backends: list[PoolConfig] = []


def read(*sets: str, file: Path | None = None, **environ: str) -> ExampleConfig:
    return load("example", ExampleConfig, file=file, sets=sets, environ=environ)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text("[pool]\nsize = 3\nnames = ['a']\n[bus]\nurl = 'nats://file:4222'\n")
    return path


def sources(config: ExampleConfig) -> dict[str, str]:
    return {each.key: each.source for each in config.explain()}


def test_a_value_that_no_place_mentions_is_the_models_default() -> None:
    config = read()
    assert config.pool.size == 2
    assert sources(config)["pool.size"] == "default"


def test_the_environment_wins_over_the_file_and_set_wins_over_both(file: Path) -> None:
    assert read(file=file).pool.size == 3
    assert read(file=file, TEMPER_EXAMPLE__POOL__SIZE="4").pool.size == 4
    assert read("pool.size=5", file=file, TEMPER_EXAMPLE__POOL__SIZE="4").pool.size == 5


def test_places_are_merged_key_by_key(file: Path) -> None:
    config = read("bus.connect_timeout_s=1.5", file=file)
    assert config.bus.url == "nats://file:4222"
    assert config.bus.connect_timeout_s == 1.5
    assert config.pool.names == ["a"]


def test_explain_names_the_place_of_every_value(file: Path) -> None:
    told = sources(read("pool.names=['x']", file=file, TEMPER_EXAMPLE__POOL__SIZE="4"))
    assert told["bus.url"] == "mine.toml"
    assert told["pool.size"] == "TEMPER_EXAMPLE__POOL__SIZE"
    assert told["pool.names"] == "--set"
    assert told["grpc.host"] == "default"


def test_another_services_environment_is_not_read() -> None:
    assert read(TEMPER_OTHER__POOL__SIZE="9").pool.size == 2


@pytest.mark.parametrize(
    ("sets", "field", "hint"),
    [
        (["bus.ulr=x"], "bus.ulr", "did you mean 'url'?"),
        (["poll.size=1"], "poll", "did you mean 'pool'?"),
        (["backends=[{sise = 1}]"], "backends[0].sise", "did you mean 'size'?"),
        (["pool.zzz=1"], "pool.zzz", "known here: size, names, extra"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_valid_name(
    sets: list[str], field: str, hint: str
) -> None:
    with pytest.raises(Rejected, match="unknown key") as caught:
        read(*sets)
    assert caught.value.field == field
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    ("assignment", "field", "message"),
    [
        ("pool.size=many", "pool.size", "valid integer"),
        ("pool.size=0", "pool.size", "greater than or equal to 1"),
        ("grpc.port=99999", "grpc.port", "less than or equal to 65535"),
        ("logging.level=loud", "logging.level", "'debug', 'info'"),
        ("pool=3", "pool", "table"),
        ("pool.names=[1", "pool.names", "not a TOML value"),
        ("pool", "--set", "not an assignment"),
    ],
)
def test_a_wrong_value_is_refused_with_its_path_and_what_is_allowed(
    assignment: str, field: str, message: str
) -> None:
    with pytest.raises(Rejected, match=message) as caught:
        read(assignment)
    assert caught.value.field == field


def test_an_error_names_the_place_the_value_came_from(file: Path) -> None:
    file.write_text("[pool]\nsize = 0\n")
    with pytest.raises(Rejected, match=r"from mine\.toml"):
        read(file=file)
    with pytest.raises(Rejected, match="from TEMPER_EXAMPLE__POOL__SIZE"):
        read(TEMPER_EXAMPLE__POOL__SIZE="x")


def test_an_error_names_all_wrong_keys_not_only_the_first() -> None:
    with pytest.raises(Rejected) as caught:
        read("pool.size=0", "grpc.port=-1", "nope=1")
    assert "grpc.port" in str(caught.value)
    assert "nope" in str(caught.value)


def test_a_missing_or_broken_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match=r"no such file: .*gone\.toml"):
        read(file=tmp_path / "gone.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("[pool\n")
    with pytest.raises(Rejected, match=r"broken\.toml is not TOML"):
        read(file=broken)


def test_the_model_is_frozen() -> None:
    config: Any = read()
    with pytest.raises(ValueError, match="frozen"):
        config.pool.size = 3


def test_values_are_read_by_the_type_of_their_field() -> None:
    config = read(
        "bus.url=123", "pool.extra={a = 1}", "blobs.allow_http=true", TEMPER_EXAMPLE__POOL__NAMES='["x"]'
    )
    assert config.bus.url == "123"
    assert config.pool.extra == {"a": 1}
    assert config.blobs.allow_http is True
    assert config.pool.names == ["x"]


def test_a_secret_is_read_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("  s3cret-of-config\n")
    assert read_secret(path, field="bus.token_file") == "s3cret-of-config"
    assert read_secret(None, field="bus.token_file") is None


def test_a_secret_that_is_absent_or_empty_is_refused_with_its_field(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="no such file") as caught:
        read_secret(tmp_path / "gone", field="bus.token_file")
    assert caught.value.field == "bus.token_file"
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(Rejected, match="is empty"):
        read_secret(tmp_path / "empty", field="bus.token_file")


def test_explain_cannot_show_a_secret(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("never-shown-by-explain")
    config = read(f"grpc.token_file={path}")
    read_secret(config.grpc.token_file, field="grpc.token_file")
    assert "never-shown-by-explain" not in repr(config.explain())


def test_nearest_says_nothing_when_nothing_is_close() -> None:
    assert nearest("rollout", ["trainer", "rollouts"]) == "rollouts"
    assert nearest("xyz", ["trainer", "rollout"]) is None


def test_a_misspelt_variable_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(Rejected, match="unknown key") as caught:
        read(TEMPER_EXAMPLE__POOL__SIEZ="1")
    assert caught.value.field == "pool.siez"
    assert caught.value.hint == "did you mean 'size'?"
    assert "TEMPER_EXAMPLE__POOL__SIEZ" in str(caught.value)
