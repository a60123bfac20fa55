"""Environments for tests: the built-in assets, and small ones written on the spot; all run by the local twin."""

from __future__ import annotations

from pathlib import Path

from temper.api.common.v1.common_pb2 import EnvRef
from temper.api.qa.v1.qa_pb2 import CheckReport
from temper.qa import builtin, digest, params
from temper.qa.checks.base import Subject
from temper.qa.checks.runner import run_checks
from temper.qa.digest import Tree
from temper.qa.engine.local import LocalProbe
from temper.qa.episodes import Measurements, Player
from temper.qa.manifest import of_tree
from temper.runtime.clock import SystemClock

GOOD_MANIFEST = """
name = "double"
version = "1.0.0"
description = "Double a number."
domain = "math"
owner = "tests"
licence = "Apache-2.0"
[[sources]]
path = "env.py"
licence = "Apache-2.0"
origin = "tests"
[runtime]
entry = "env.py"
[reward]
min = 0.0
max = 1.0
[verifier]
deterministic = true
[oracle]
styles = ["direct"]
[limits]
setup_s = 5.0
task_s = 5.0
verify_s = 5.0
tool_wall_s = 5.0
tool_memory_bytes = 1000000
tool_pids = 4
tool_output_bytes = 1000
[network]
mode = "none"
[params.step]
default = 1
description = "Distance between tasks."
"""

GOOD_CODE = """
class Environment:
    def __init__(self, params):
        self.step = params["step"]
    def task(self, split, index):
        start = {"train": 1000, "heldout": 5000, "eval": 9000}[split]
        return {"prompt": f"double {start + index * self.step}", "private": {"answer": str(2 * (start + index * self.step))}}
    def oracle(self, task, style):
        return [{"answer": task["private"]["answer"]}]
    def score(self, task, answer, transcript):
        return 1.0 if answer == task["private"]["answer"] else 0.0
"""


def tree_of(files: dict[str, str], root: Path) -> Tree:
    """An asset of these files, read from a real directory."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return digest.read_directory(root)


def double(root: Path, *, code: str = GOOD_CODE, manifest: str = GOOD_MANIFEST) -> Tree:
    """The small environment, or a broken version of it."""
    return tree_of({"env.toml": manifest, "env.py": code}, root)


def asset(name: str) -> Tree:
    """A built-in asset."""
    return digest.read_directory(builtin.ASSETS / name)


async def check(tree: Tree, name: str, overrides: str = "") -> CheckReport:
    """The report on one environment of an asset."""
    manifest = of_tree(tree)
    effective = params.effective(manifest, name, overrides)
    identity = digest.digest(tree, effective)
    env = EnvRef(name=name, version=manifest.version, digest=identity, params_json=effective)

    async def load(_: EnvRef) -> Tree:
        return tree

    player = Player(LocalProbe(load), env, run="test", concurrency=4)
    measured = Measurements(player, styles=manifest.oracle.styles, tasks=5)
    subject = Subject(manifest, tree, digest.write_tar(tree), identity, effective, measured)
    return await run_checks(subject, backend="local", clock=SystemClock())


def failed(report: CheckReport) -> list[str]:
    """Ids of the checks that failed, warnings included."""
    return [result.id for result in report.results if not result.passed]
