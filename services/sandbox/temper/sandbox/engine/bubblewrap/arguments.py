"""The command line of `bwrap`. Pure: the same paths give the same words. Source: bwrap(1)."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from temper.sandbox.engine.launcher import Python

GUEST: Final = "/opt/temper"
"""Where the guest's own code lies inside, read-only."""
_SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib64")
_DEVICES: Final = ("null", "zero", "full", "random", "urandom")
_UNSHARED: Final = (
    *("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"),
)
_KEPT: Final = (
    "CAP_SETUID",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_CHOWN",
    "CAP_DAC_READ_SEARCH",
    "CAP_SYS_ADMIN",
)
_STARTER: Final = (
    f"import sys; sys.path.append({GUEST!r}); from temper.sandbox.engine.guest import boxed; boxed.main()"
)


def command(
    bwrap: str,
    python: Python,
    etc: Path,
    readonly_paths: Sequence[str],
    tree_bytes: int,
    *,
    user_namespace: bool,
) -> list[str]:
    """Everything unshared, a read-only root of programs, sized /work and /tmp, and init as process 1.

    As root there is no user namespace: init itself takes the slot's uid and then gives up the few rights it needs for that.
    """
    size = str(tree_bytes)
    rights = ["--unshare-user"] if user_namespace else [w for name in _KEPT for w in ("--cap-add", name)]
    package = Path(__file__).parents[1] / "guest"
    return [
        *(bwrap, *_UNSHARED, "--die-with-parent", "--as-pid-1", "--new-session"),
        *("--hostname", "sandbox", "--clearenv", "--cap-drop", "ALL", *rights),
        *_system(readonly_paths),
        *_shown(str(package), f"{GUEST}/temper/sandbox/engine/guest"),
        *_shown(str(etc), "/etc"),
        *("--ro-bind-try", "/etc/alternatives", "/etc/alternatives"),
        *("--dir", "/var", "--perms", "0755", "--dir", "/root"),
        *("--symlink", "/tmp", "/var/tmp"),  # noqa: S108 - the sandbox's own
        *_devices(),
        *("--proc", "/proc"),
        *("--perms", "0700", "--size", size, "--tmpfs", "/work"),
        *("--perms", "1777", "--size", size, "--tmpfs", "/tmp"),  # noqa: S108 - as above
        *("--remount-ro", "/", "--chdir", "/work", "--"),
        *(python.executable, "-S", "-s", "-P", "-B", "-X", "utf8", "-c", _STARTER),
    ]


def _system(readonly_paths: Sequence[str]) -> list[str]:
    words: list[str] = []
    for path in (*_SYSTEM, *readonly_paths):
        if os.path.islink(path):  # noqa: PTH114 - /lib64 and its kin may be links
            words += ["--symlink", os.readlink(path), path]  # noqa: PTH115 - as above
        elif Path(path).exists():
            words += _shown(path, path)
    return words


def _shown(source: str, path: str) -> list[str]:
    """A read-only view, the directories above it open to all: bwrap would make them its own."""
    above = [str(each) for each in reversed(Path(path).parents) if each != Path("/")]
    return [
        *(word for each in above for word in ("--perms", "0755", "--dir", each)),
        "--ro-bind",
        source,
        path,
    ]


def _devices() -> list[str]:
    """Not `--dev`: its tree is a tmpfs without a limit."""
    words = ["--perms", "0755", "--size", "65536", "--tmpfs", "/dev"]
    for name in _DEVICES:
        words += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    links = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1"}
    links |= {"stderr": "/proc/self/fd/2", "shm": "/tmp"}  # noqa: S108 - shared memory counts against the tmpfs
    for name, target in links.items():
        words += ["--symlink", target, f"/dev/{name}"]
    return [*words, "--remount-ro", "/dev"]
