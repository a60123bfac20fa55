"""Rules about the repository itself: who may import whom, and what may not exist."""

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SERVICES = ("scheduler", "rollout", "trainer", "sandbox", "qa", "telemetry")
HEAVY = {"torch", "megatron", "tensorrt_llm", "docker", "clickhouse_connect", "chdb"}
# The supervisor restarts or gives up; an environment worker and a guest run the code of others, whose errors are output.
CATCH_ALL = {"supervisor.py", "envworker.py"}
PURE_REFUSES = {"asyncio", "grpc", "time", "datetime", "threading", "socket", "temper.runtime.clock"}


def sources() -> Iterator[Path]:
    for path in sorted((ROOT / "services").rglob("*.py")):
        if "/assets/" not in str(path):
            yield path


def imported(path: Path, *, top_level_only: bool = False) -> set[str]:
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_level_only else list(ast.walk(tree))
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_the_layers_hold() -> None:
    tool = shutil.which("lint-imports", path=str(Path(sys.executable).parent))
    assert tool, "lint-imports is part of the dev extra"
    done = subprocess.run([tool, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_namespace_has_no_init_file() -> None:
    found = [path for path in ROOT.glob("*/**/temper/__init__.py") if ".venv" not in path.parts]
    assert found == []


def test_every_part_of_the_namespace_is_importable_from_one_process() -> None:
    parts = " ".join(f"import temper.{name};" for name in ("runtime", "client", *SERVICES))
    code = f"import temper; assert not hasattr(temper, '__file__') or temper.__file__ is None; {parts}"
    subprocess.run([sys.executable, "-c", code], check=True, cwd="/")


def constants(path: Path) -> Iterator[tuple[str, str]]:
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name.isupper() and len(name) > 1:
                yield name, ast.unparse(node.value)


def test_what_the_parts_of_the_trainer_agree_on_is_written_once() -> None:
    """The engines, and the programs of their ranks, read each other's files and frames."""
    at: dict[tuple[str, str], list[str]] = {}
    for path in sources():
        if "trainer" in path.parts:
            for constant in constants(path):
                at.setdefault(constant, []).append(path.name)
    assert {constant: paths for constant, paths in at.items() if len(paths) > 1} == {}


def test_heavy_vendors_live_in_engine_rooms() -> None:
    offenders = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sources()
        if "engine" not in path.parts
        for name in imported(path)
        if name.split(".")[0] in HEAVY
    ]
    assert not offenders, "\n".join(offenders)


def test_state_machines_know_no_loop_no_wire_and_no_clock() -> None:
    offenders = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sources()
        if path.name == "state.py"
        for name in imported(path)
        if name in PURE_REFUSES or name.split(".")[0] in PURE_REFUSES
    ]
    assert not offenders, "\n".join(offenders)


def test_nothing_is_ever_unpickled() -> None:
    refused = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
    offenders = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sources()
        for name in imported(path)
        if name.split(".")[0] in refused
    ]
    assert not offenders, "\n".join(offenders)
    loads = re.compile(r"torch\.load\((?![^)]*weights_only=True)")
    assert [str(path) for path in sources() if loads.search(path.read_text())] == []


def swallows_everything(handler: ast.ExceptHandler) -> bool:
    """Catches every exception and does not raise it again."""
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    broad = any(
        kind is None or (isinstance(kind, ast.Name) and kind.id in {"Exception", "BaseException"})
        for kind in kinds
    )
    last = handler.body[-1]
    return broad and not (isinstance(last, ast.Raise) and last.exc is None)


def test_only_the_supervisor_catches_everything() -> None:
    offenders = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sources()
        if path.name not in CATCH_ALL and "guest" not in path.parts
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ExceptHandler) and swallows_everything(node)
    ]
    assert not offenders, "\n".join(offenders)


def test_no_placeholder_is_left() -> None:
    words = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|raise NotImplementedError")
    assert [str(path.relative_to(ROOT)) for path in sources() if words.search(path.read_text())] == []


def test_no_function_is_longer_than_eighty_lines() -> None:
    offenders = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (node.end_lineno or node.lineno) - node.lineno + 1 > 80
    ]
    assert not offenders, "\n".join(offenders)


def test_every_ignore_carries_its_reason() -> None:
    bare = re.compile(
        r"#\s*(noqa(: *[A-Z0-9, ]+)?|type: *ignore(\[[^\]]*\])?|pyright: *ignore(\[[^\]]*\])?)\s*$"
    )
    files = [*sources(), *(ROOT / "tests").rglob("*.py"), *(ROOT / "bench").rglob("*.py")]
    offenders = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in files
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if bare.search(line)
    ]
    assert not offenders, "\n".join(offenders)


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_parses_its_configuration_before_the_heavy_world(service: str) -> None:
    heavy = ", ".join(repr(name) for name in sorted(HEAVY | {"transformers", "reasoning_gym", "pyarrow"}))
    code = (
        f"import sys; sys.argv = ['x', '--show-config']; import runpy\n"
        f"try: runpy.run_module('temper.{service}', run_name='__main__')\n"
        f"except SystemExit as end: assert end.code == 0, end.code\n"
        f"loaded = {{{heavy}}} & set(sys.modules); assert not loaded, loaded"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
