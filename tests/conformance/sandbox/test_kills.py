# ruff: noqa: ASYNC221, ASYNC240 - a child is waited for, and small reads of /proc block nobody here
"""However often and whenever the host's service is killed, nothing is left. TEMPER_TEST_KILLS sets the rounds."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conformance.sandbox.test_leftovers import commands, started

from temper.runtime.testing import eventually
from temper.sandbox.engine import cgroups

ROUNDS = int(os.environ.get("TEMPER_TEST_KILLS", "6"))


@pytest.mark.timeout(120 + 4 * ROUNDS)
@pytest.mark.parametrize("name", ["namespaces", "bubblewrap", "process"])
async def test_a_service_killed_again_and_again_leaves_nothing(name: str, tmp_path: Path) -> None:
    await (await started(name, tmp_path)).close()  # skips where the backend cannot run
    before = Path("/proc/self/mountinfo").read_text()
    known = set(cgroups.orphans(cgroups.detect()))
    command = [sys.executable, "-m", "tests.conformance.sandbox.kills", name, str(tmp_path), str(ROUNDS), "1"]
    done = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=True)
    assert sum(json.loads(done.stdout).values()) == ROUNDS
    await eventually(lambda: commands("sleep 4747") == [])
    assert set(cgroups.orphans(cgroups.detect())) <= known
    assert Path("/proc/self/mountinfo").read_text() == before
    assert list(tmp_path.glob("owner-*")) == []
    assert list(tmp_path.glob("work-*")) == []
