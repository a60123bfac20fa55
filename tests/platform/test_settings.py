"""Settings are documented where a user looks: the service's own file, or the page of common keys."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from temper.runtime.config import ServiceConfig, leaves

ROOT = Path(__file__).parents[2]
SERVICES = ("scheduler", "rollout", "trainer", "sandbox", "qa", "telemetry")
COMMON = {key for key, _ in leaves(ServiceConfig())}


def settings(service: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", f"temper.{service}", "--show-config", "--output", "json"],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("service", SERVICES)
def test_every_default_of_a_service_is_in_its_file(service: str) -> None:
    unwritten = [
        row["key"]
        for row in settings(service)
        if row["source"] == "default" and row["key"] not in COMMON and row["value"] is not None
    ]
    assert not unwritten


@pytest.mark.parametrize("service", SERVICES)
def test_every_key_in_a_services_file_has_a_comment_or_a_heading_above_it(service: str) -> None:
    lines = (ROOT / f"services/{service}/{service}.toml").read_text().splitlines()
    assert lines[0].startswith("#")
    comments = sum(line.lstrip().startswith("#") or " # " in line for line in lines)
    keys = sum(bool(re.match(r"\s*[a-z_]+ *=", line)) for line in lines)
    assert comments * 2 >= keys


def test_every_common_key_is_on_the_page_with_its_default() -> None:
    page = (ROOT / "docs/configuration.md").read_text()
    rows = dict(re.findall(r"^\| `([a-z_.]+)` \| (\S+) \|", page, re.MULTILINE))
    shown = {
        key: "—" if value is None else f"`{str(value).lower() if isinstance(value, bool) else value}`"
        for key, value in leaves(ServiceConfig())
    }
    assert rows == shown
