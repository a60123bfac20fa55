"""From a configuration to a backend, and what a doctor says of each."""

import json
import subprocess
import sys

import pytest

from temper.runtime.errors import Rejected
from temper.sandbox.choose import NAMES, make_backend
from temper.sandbox.config import SandboxConfig


@pytest.mark.parametrize("name", NAMES)
def test_every_name_makes_its_backend(name: str) -> None:
    config = SandboxConfig.model_validate({"backend": name, "slots": 2})
    assert type(make_backend(config)).__name__.lower() == f"{name}backend"


def test_a_selector_that_is_no_label_is_named() -> None:
    config = SandboxConfig.model_validate({"backend": "kubernetes", "kubernetes": {"node_selector": ["gpu"]}})
    with pytest.raises(Rejected, match=r"kubernetes\.node_selector"):
        make_backend(config)


def test_the_doctor_tries_every_backend_and_says_why_one_does_not_work() -> None:
    command = [sys.executable, "-m", "temper.sandbox", "doctor", "--all", "--set", "backend=fake"]
    absent = ["--set", "docker.url=unix:///nowhere", "--set", "gvisor.program=no-such-runsc"]
    done = subprocess.run([*command, *absent], capture_output=True, text=True, check=False)
    found = {each["backend"]: each for each in json.loads(done.stdout)["backends"]}
    assert set(found) == set(NAMES)
    assert "no Docker engine answers" in found["docker"]["reason"]
    assert "not installed" in found["gvisor"]["reason"]
    assert found["kubernetes"]["reason"]
    assert found["process"]["works"]
