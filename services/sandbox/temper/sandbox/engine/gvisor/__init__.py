"""Sandboxes with a kernel of their own in user space: gVisor's `runsc`, without an engine above it.

    backend    slots, control groups, what this host's runsc can do
    bundle     the OCI configuration of one container (pure)
    container  one container: runsc's commands, its trees on the host, its end

`runsc run` is started by the same launcher as the other backends' sandboxes and dies with it, and it with the service.
"""

from temper.sandbox.engine.gvisor.backend import GvisorBackend

__all__ = ["GvisorBackend"]
