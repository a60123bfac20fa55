"""Configuration files of the deployments are what the services accept, and images start what they say."""

from __future__ import annotations

import importlib
import re
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from temper.runtime.config import load

ROOT = Path(__file__).resolve().parents[2]
SERVICES = ("scheduler", "rollout", "trainer", "sandbox", "qa", "telemetry")
COMPOSE = ROOT / "compose" / "compose.yaml"


def compose() -> dict[str, Any]:
    return yaml.safe_load(COMPOSE.read_text())


def config_type(service: str) -> Any:
    module = importlib.import_module(f"temper.{service}.config")
    return getattr(module, f"{service.capitalize() if service != 'qa' else 'Qa'}Config")


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("place", ["k8s/base/{0}/{0}.toml", "compose/config/{0}.toml"])
def test_a_deployments_configuration_file_is_accepted_by_its_service(service: str, place: str):
    loaded = load(service, config_type(service), file=ROOT / place.format(service), environ={})
    assert loaded.log.url.startswith("kafka://")
    assert loaded.bus.token_file is not None
    assert loaded.grpc.token_file is not None


@pytest.mark.parametrize("service", SERVICES)
def test_an_image_starts_its_own_service_with_its_own_extra(service: str):
    text = (ROOT / "services" / service / "Dockerfile").read_text()
    assert f'ENTRYPOINT ["python", "-m", "temper.{service}"]' in text
    assert f"'.[{service},kafka,otel]'" in text
    assert "STOPSIGNAL SIGTERM" in text
    assert ("torch==" in text) == (service in {"rollout", "trainer"})
    if service != "sandbox":
        assert re.search(r"^USER 10001", text, re.MULTILINE)


@pytest.mark.parametrize("service", SERVICES)
def test_compose_runs_every_service_closed(service: str):
    spec = compose()["services"][service]
    assert spec["read_only"] is True
    assert spec["cap_drop"] == ["ALL"]
    assert ("cap_add" in spec) == (service == "sandbox")
    for published in spec.get("ports", []):
        assert published.startswith("127.0.0.1:")


def test_compose_mounts_only_files_that_exist_or_are_made_by_the_secrets_script(tmp_path: Path):
    script = tmp_path / "secrets.sh"
    script.write_text((ROOT / "compose" / "secrets.sh").read_text())
    subprocess.run(["sh", str(script)], check=True, timeout=30, capture_output=True)
    made = {path.name for path in (tmp_path / "secrets").iterdir()}
    assert {Path(entry["file"]).name for entry in compose()["secrets"].values()} == made
    assert stat.S_IMODE((tmp_path / "secrets").stat().st_mode) == 0o700
    for service in SERVICES:
        for volume in compose()["services"][service]["volumes"]:
            assert (COMPOSE.parent / volume.split(":")[0]).is_file()
