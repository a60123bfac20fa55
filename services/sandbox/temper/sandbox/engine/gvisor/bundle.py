"""The configuration of one container, as OCI's runtime specification has it. Pure."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from temper.sandbox.engine.command import Limits
from temper.sandbox.engine.container import processes

TREES: Final = ("/work", "/tmp")  # noqa: S108 - the sandbox's own
_HOLD: Final = f"echo ready; {processes.HOLD}"
_NO_RIGHTS: Final[Mapping[str, list[str]]] = {
    "bounding": [],
    "effective": [],
    "inheritable": [],
    "permitted": [],
    "ambient": [],
}


def configuration(
    root: Path,
    trees: Mapping[str, Path],
    readonly: Sequence[str],
    environment: Mapping[str, str],
    limits: Limits,
) -> dict[str, Any]:
    """`config.json`. `trees` maps /work and /tmp to directories of the host; `readonly` are shown at their own path."""
    return {
        "ociVersion": "1.0.2",
        "hostname": "sandbox",
        "process": {
            **process(["/bin/sh", "-c", _HOLD], environment, uid=0, cwd="/"),
            "rlimits": [
                {"type": name, "soft": value, "hard": value}
                for name, value in (
                    ("RLIMIT_NOFILE", limits.open_files),
                    ("RLIMIT_FSIZE", limits.file_bytes),
                    ("RLIMIT_CORE", 0),
                )
            ],
        },
        "root": {"path": str(root), "readonly": True},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            *(_bind(path, path, "ro") for path in readonly),
            *(_bind(str(source), destination, "rw") for destination, source in trees.items()),
        ],
        "linux": {
            "namespaces": [{"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount")],
        },
    }


def process(
    argv: Sequence[str], environment: Mapping[str, str], *, uid: int, cwd: str, groups: Sequence[int] = ()
) -> dict[str, Any]:
    """A process without a right, for the container and for `runsc exec --process`."""
    return {
        "terminal": False,
        "user": {"uid": uid, "gid": uid, "additionalGids": list(groups)},
        "args": list(argv),
        "env": [f"{name}={value}" for name, value in environment.items()],
        "cwd": cwd,
        "capabilities": dict(_NO_RIGHTS),
        "noNewPrivileges": True,
    }


def _bind(source: str, destination: str, mode: str) -> dict[str, Any]:
    return {
        "destination": destination,
        "type": "bind",
        "source": source,
        "options": ["rbind", mode, "nosuid", "nodev"],
    }
