"""What a user's pip gets: one wheel with every part, data beside code, and a base without the heavy world."""

import importlib.metadata
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
SERVICES = ("scheduler", "rollout", "trainer", "sandbox", "qa", "telemetry")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    target = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (built,) = target.glob("temper_rl-*.whl")
    return zipfile.ZipFile(built)


def test_the_wheel_has_every_part_and_no_init_of_the_namespace(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    for part in ("client", "runtime", *SERVICES):
        assert any(name.startswith(f"temper/{part}/") and name.endswith(".py") for name in names), part
    assert "temper/api/job/v1/job_pb2.py" in names
    assert "buf/validate/validate_pb2.py" in names
    assert "temper/__init__.py" not in names
    assert not [name for name in names if name.startswith(("services/", "proto/", "tests/"))]


def test_the_wheel_has_topology_schema_and_defaults_beside_the_code(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    assert "temper/runtime/topology.toml" in names
    assert any(name.startswith("temper/telemetry/clickhouse/") and name.endswith(".sql") for name in names)
    for service in SERVICES:
        assert f"temper/{service}/{service}.toml" in names


def test_the_base_install_has_no_torch_and_no_database() -> None:
    base = {Requirement(each).name for each in PROJECT["project"]["dependencies"]}
    assert not base & {
        "torch",
        "chdb",
        "clickhouse-connect",
        "transformers",
        "pyarrow",
        "numpy",
        "reasoning-gym",
    }


def test_there_is_an_extra_per_service_and_all_has_them() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    assert set(SERVICES) <= set(extras)
    (everything,) = extras["all"]
    assert set(SERVICES) <= Requirement(everything).extras


def test_verl_2205_every_requirement_is_pinned_in_the_one_list_of_constraints() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {_normal(line.split("==")[0]) for line in lines if "==" in line}
    extras = PROJECT["project"]["optional-dependencies"]
    asked = [*PROJECT["project"]["dependencies"], *(each for group in extras.values() for each in group)]
    missing = {_normal(Requirement(each).name) for each in asked} - pinned - {"temper-rl"}
    assert not missing, missing


def test_what_is_installed_is_what_the_constraints_say() -> None:
    wrong: list[str] = []
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        name, sign, version = line.partition("==")
        try:
            installed = importlib.metadata.version(name).partition("+")[0] if sign else version
        except importlib.metadata.PackageNotFoundError:
            continue
        if installed != version:
            wrong.append(f"{name}: {installed} instead of {version}")
    assert not wrong, wrong


def _normal(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")
