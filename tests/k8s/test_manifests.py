"""The Kubernetes manifests render, are valid for the API server, and each base stands alone."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
BASE = ROOT / "k8s" / "base"
SERVICES = ("scheduler", "rollout", "trainer", "sandbox", "qa", "telemetry")
KUBERNETES = "1.31"

needs_kubectl = pytest.mark.skipif(
    shutil.which("kubectl") is None, reason="kubectl is not installed: kustomize cannot render"
)


@cache
def render(directory: Path) -> tuple[dict[str, Any], ...]:
    done = subprocess.run(
        ["kubectl", "kustomize", str(directory)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return tuple(yaml.safe_load_all(done.stdout))


def one(service: str, kind: str) -> dict[str, Any]:
    found = [doc for doc in render(BASE / service) if doc["kind"] == kind]
    assert len(found) == 1, f"{service}: expected one {kind}, found {len(found)}"
    return found[0]


@needs_kubectl
@pytest.mark.parametrize("service", SERVICES)
def test_every_document_of_a_base_is_valid_for_the_api_server(service: str):
    for document in render(BASE / service):
        kubernetes_validate.validate(document, KUBERNETES, strict=True)


@needs_kubectl
@pytest.mark.parametrize("service", SERVICES)
def test_a_base_deploys_its_service_alone(service: str):
    kinds = sorted(document["kind"] for document in render(BASE / service))
    assert kinds == sorted(
        ["ConfigMap", "Deployment", "NetworkPolicy", "PodDisruptionBudget", "Service", "ServiceAccount"]
    )
    for document in render(BASE / service):
        assert document["metadata"]["namespace"] == "temper"
        assert document["metadata"]["labels"]["app.kubernetes.io/name"] == service


@needs_kubectl
@pytest.mark.parametrize("service", SERVICES)
def test_selectors_reach_the_pods(service: str):
    labels = one(service, "Deployment")["spec"]["template"]["metadata"]["labels"]
    selectors = [
        one(service, "Deployment")["spec"]["selector"]["matchLabels"],
        one(service, "Service")["spec"]["selector"],
        one(service, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        one(service, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
    ]
    for selector in selectors:
        assert selector
        assert selector.items() <= labels.items()


@needs_kubectl
@pytest.mark.parametrize("service", SERVICES)
def test_pods_have_probes_limits_and_a_closed_security_context(service: str):
    pod = one(service, "Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert {"startupProbe", "readinessProbe", "livenessProbe"} <= container.keys()
    for kind in ("requests", "limits"):
        assert container["resources"][kind].keys() == {"cpu", "memory"}
    security = container["securityContext"]
    assert security["allowPrivilegeEscalation"] is False
    assert security["readOnlyRootFilesystem"] is True
    assert security["capabilities"]["drop"] == ["ALL"]
    assert pod["automountServiceAccountToken"] is False
    if service == "sandbox":
        assert "SYS_ADMIN" in security["capabilities"]["add"]
    else:
        assert "add" not in security["capabilities"]
        assert pod["securityContext"]["runAsNonRoot"] is True


@needs_kubectl
@pytest.mark.parametrize("service", SERVICES)
def test_the_service_port_is_the_configured_port(service: str):
    import tomllib

    config = tomllib.loads((BASE / service / f"{service}.toml").read_text())
    ports = {port["name"]: port["port"] for port in one(service, "Service")["spec"]["ports"]}
    assert ports == {"grpc": config["grpc"]["port"], "metrics": config["metrics"]["port"]}


@needs_kubectl
@pytest.mark.parametrize("service", SERVICES)
def test_a_pod_may_reach_only_what_its_configuration_names(service: str):
    egress = one(service, "NetworkPolicy")["spec"]["egress"]
    named = {
        peer["podSelector"]["matchLabels"].get("app.kubernetes.io/name", "dns")
        for rule in egress
        for peer in rule["to"]
    }
    expected = {"dns", "nats", "kafka", "objects"} | ({"clickhouse"} if service == "telemetry" else set())
    assert named == expected


@needs_kubectl
def test_the_whole_base_is_the_sum_of_the_services():
    documents = render(BASE)
    names = {doc["metadata"]["name"] for doc in documents if doc["kind"] == "Deployment"}
    assert names == set(SERVICES)
    assert any(doc["kind"] == "Namespace" for doc in documents)
