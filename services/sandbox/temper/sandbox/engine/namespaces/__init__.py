"""The default backend on Linux: kernel namespaces, a private read-only root, cgroups, dropped rights, a filter.

Two ways in, tried in this order: as root (each slot has its own uid) or through a user namespace (one uid for all;
control groups then only where a subtree was delegated).
"""

from temper.sandbox.engine.namespaces.backend import NamespacesBackend

__all__ = ["NamespacesBackend"]
