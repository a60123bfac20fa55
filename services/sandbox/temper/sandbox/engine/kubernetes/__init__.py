"""Sandboxes as pods, by the agent-sandbox resources of a cluster.

    resources  what is asked for: SandboxTemplate, SandboxWarmPool, SandboxClaim (pure)
    api        the cluster's API over HTTPS, and exec over WebSockets
    container  one claim and its pod
    backend    slots, templates by limits, leases, reclaiming

Source of the resources: github.com/kubernetes-sigs/agent-sandbox, v1beta1.
"""

from temper.sandbox.engine.kubernetes.api import Access
from temper.sandbox.engine.kubernetes.backend import KubernetesBackend
from temper.sandbox.engine.kubernetes.resources import Owner, PodSettings

__all__ = ["Access", "KubernetesBackend", "Owner", "PodSettings"]
