"""What is asked of the cluster. Pure: the same settings give the same objects."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from temper.sandbox.engine.command import Limits
from temper.sandbox.engine.container import processes

EXTENSIONS: Final = "extensions.agents.x-k8s.io/v1beta1"
CORE: Final = "agents.x-k8s.io/v1beta1"
OWNER: Final = "temper-rl.org/owner"
"""Label: the service process that made an object."""
PLACE: Final = "temper-rl.org/place"
"""Label: the state directory of that service, by an id that lies in it."""
POD_NAME: Final = "agents.x-k8s.io/pod-name"
"""Annotation of a Sandbox whose pod came from a pool and has another name."""
CONTAINER: Final = "agent"
TREES: Final = ("/work", "/tmp")  # noqa: S108 - the sandbox's own
_HOLD: Final = f"trap '' TERM INT HUP; {processes.HOLD}"


@dataclass(frozen=True, slots=True)
class PodSettings:
    """What all pods have in common. Example: `PodSettings("python:3.12-slim", runtime_class="gvisor")`."""

    image: str
    """Image of the only container; needs /bin/sh, coreutils and, for the python tool, python3."""
    runtime_class: str = ""
    """RuntimeClass, such as one for gVisor or Kata; empty for the cluster's default."""
    uid: int = 1000
    """User of everything inside."""
    node_selector: Mapping[str, str] | None = None
    """Labels that a node must have."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The pod this service runs in; its objects are the cluster's to collect once it is gone. Empty outside of a pod."""

    name: str = ""
    """Name of the pod."""
    uid: str = ""
    """Its uid, by the downward API."""


def metadata(name: str, labels: Mapping[str, str], owner: Owner) -> dict[str, Any]:
    """Name, labels and, inside a pod, who owns it."""
    made: dict[str, Any] = {"name": name, "labels": dict(labels)}
    if owner.name and owner.uid:
        reference = {"apiVersion": "v1", "kind": "Pod", "name": owner.name, "uid": owner.uid}
        made["ownerReferences"] = [reference]
    return made


def template(
    about: Mapping[str, Any], settings: PodSettings, limits: Limits, labels: Mapping[str, str]
) -> dict[str, Any]:
    """A SandboxTemplate: no network in or out, nothing writable but two sized memory volumes."""
    return {
        "apiVersion": EXTENSIONS,
        "kind": "SandboxTemplate",
        "metadata": dict(about),
        "spec": {
            "podTemplate": {"metadata": {"labels": dict(labels)}, "spec": _pod(settings, limits)},
            "networkPolicyManagement": "Managed",
            "networkPolicy": {"ingress": [], "egress": []},
            "envVarsInjectionPolicy": "Disallowed",
            "service": False,
        },
    }


def _pod(settings: PodSettings, limits: Limits) -> dict[str, Any]:
    promised = limits.guarantee
    bound = {"cpu": f"{int(limits.cpus * 1000)}m", "memory": str(limits.memory_bytes)}
    request = {
        "cpu": f"{int(promised.cpus * 1000)}m",
        "memory": str(promised.memory_bytes),
        "ephemeral-storage": str(promised.disk_bytes),
    }
    pod: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "hostname": "sandbox",
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": settings.uid,
            "runAsGroup": settings.uid,
            "fsGroup": settings.uid,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": CONTAINER,
                "image": settings.image,
                "command": ["/bin/sh", "-c", _HOLD],
                "workingDir": TREES[0],
                "resources": {"limits": bound, "requests": request},
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                    "readOnlyRootFilesystem": True,
                },
                "volumeMounts": [{"name": tree[1:], "mountPath": tree} for tree in TREES],
            }
        ],
        "volumes": [
            {"name": tree[1:], "emptyDir": {"medium": "Memory", "sizeLimit": str(limits.disk_bytes)}}
            for tree in TREES
        ],
    }
    if settings.runtime_class:
        pod["runtimeClassName"] = settings.runtime_class
    if settings.node_selector:
        pod["nodeSelector"] = dict(settings.node_selector)
    return pod


def kind_of(settings: PodSettings, limits: Limits) -> str:
    """A name for all sandboxes of one template: what a pod has is settled when it is made."""
    text = json.dumps(_pod(settings, limits), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def warm_pool(about: Mapping[str, Any], of: str, replicas: int) -> dict[str, Any]:
    """A SandboxWarmPool over a template."""
    return {
        "apiVersion": EXTENSIONS,
        "kind": "SandboxWarmPool",
        "metadata": dict(about),
        "spec": {
            "replicas": replicas,
            "sandboxTemplateRef": {"name": of},
            "updateStrategy": {"type": "Recreate"},
        },
    }


def claim(about: Mapping[str, Any], pool: str, until: float) -> dict[str, Any]:
    """A SandboxClaim that the cluster itself ends at `until` (Unix seconds) unless it is extended."""
    return {
        "apiVersion": EXTENSIONS,
        "kind": "SandboxClaim",
        "metadata": dict(about),
        "spec": {"warmPoolRef": {"name": pool}, "lifecycle": lifecycle(until)},
    }


def lifecycle(until: float) -> dict[str, Any]:
    """The end of a claim."""
    text = datetime.fromtimestamp(until, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"shutdownTime": text, "shutdownPolicy": "Delete"}
