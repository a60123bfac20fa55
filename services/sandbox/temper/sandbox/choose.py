"""From the configuration to a backend. The only place that knows the names of all; each one's module is imported only then."""

import os
from collections.abc import Sequence
from typing import Final, get_args

from temper.runtime.errors import Rejected, Unavailable
from temper.sandbox.config import BackendName, SandboxConfig
from temper.sandbox.engine.base import Backend

NAMES: Final[tuple[BackendName, ...]] = get_args(BackendName)
"""Every backend there is."""


def make_backend(config: SandboxConfig) -> Backend:
    """The backend that the configuration names. Raises Unavailable where its extra is not installed."""
    slots = config.slots + max(config.warm, config.warm_most)  # the warm ones wait in slots of their own
    state_dir = config.state_dir.absolute()
    match config.backend:
        case "namespaces":
            from temper.sandbox.engine.namespaces import NamespacesBackend

            return NamespacesBackend(
                slots=slots,
                state_dir=state_dir,
                first_uid=config.first_uid,
                readonly_paths=config.readonly_paths,
            )
        case "bubblewrap":
            from temper.sandbox.engine.bubblewrap import BubblewrapBackend

            return BubblewrapBackend(
                slots=slots,
                state_dir=state_dir,
                first_uid=config.first_uid,
                readonly_paths=config.readonly_paths,
            )
        case "process":
            from temper.sandbox.engine.process import ProcessBackend

            return ProcessBackend(slots=slots, state_dir=state_dir)
        case "fake":
            from temper.sandbox.engine.fake import FakeBackend

            return FakeBackend(slots=slots)
        case "gvisor":
            from temper.sandbox.engine.gvisor import GvisorBackend

            return GvisorBackend(
                slots=slots,
                state_dir=state_dir,
                program=config.gvisor.program,
                platform=config.gvisor.platform,
                rootfs=config.gvisor.rootfs,
                first_uid=config.first_uid,
                readonly_paths=config.readonly_paths,
            )
        case "docker":
            return _docker(config, slots)
        case "kubernetes":
            return _kubernetes(config, slots)


def _docker(config: SandboxConfig, slots: int) -> Backend:
    try:
        from temper.sandbox.engine.docker import DockerBackend, ImageSource
    except ImportError as error:
        raise Unavailable(
            f"the docker backend needs {error.name}", hint="pip install 'temper-rl[docker]'"
        ) from error

    has = config.docker
    return DockerBackend(
        slots=slots,
        state_dir=config.state_dir.absolute(),
        url=has.url,
        source=ImageSource(has.image, has.dockerfile, has.rootfs),
        runtime=has.runtime,
        first_uid=config.first_uid,
        readonly_paths=config.readonly_paths,
    )


def _kubernetes(config: SandboxConfig, slots: int) -> Backend:
    try:
        from temper.sandbox.engine.kubernetes import Access, KubernetesBackend, Owner, PodSettings
    except ImportError as error:
        raise Unavailable(
            f"the kubernetes backend needs {error.name}", hint="pip install 'temper-rl[kubernetes]'"
        ) from error

    has = config.kubernetes
    return KubernetesBackend(
        slots=slots,
        state_dir=config.state_dir.absolute(),
        access=Access(has.url, has.token_file, has.ca_file, has.namespace),
        pods=PodSettings(has.image, has.runtime_class, has.uid, _labels(has.node_selector)),
        owner=Owner(os.environ.get("POD_NAME", ""), os.environ.get("POD_UID", "")),
        warm=has.warm,
        lease_s=has.lease_s,
        ready_s=has.ready_s,
    )


def _labels(texts: Sequence[str]) -> dict[str, str]:
    """`label=value` texts. Raises Rejected."""
    wrong = [text for text in texts if "=" not in text]
    if wrong:
        raise Rejected(f"{wrong[0]!r} is no label=value", field="kubernetes.node_selector")
    return dict(text.split("=", 1) for text in texts)
