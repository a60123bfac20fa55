# ruff: noqa: PTH101, PTH102, PTH103, PTH113, PTH114, PTH115, PTH123, PTH211 - pathlib would lie in every sandbox's memory for nothing
"""The root that every sandbox of this host sees: built once, read-only, holding nothing of the host but programs.

The launcher makes it in its own mount namespace and lets go of the host's tree, so a sandbox copies eight mounts
instead of the host's table and no path to the host is left to find. A sandbox adds its own /work, /tmp and /proc.
"""

import os
import stat
from collections.abc import Sequence
from typing import Final

from temper.sandbox.engine.guest import syscalls

WORK: Final = "/work"
TMP: Final = "/tmp"  # noqa: S108 - the sandbox's own tmpfs, not the host's directory

_SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/alternatives")
_COPIED: Final = ("/etc/ld.so.cache", "/etc/localtime", "/etc/os-release", "/etc/mime.types")
_DEVICES: Final = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9)}
_FIXED: Final = {
    "/etc/hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "/etc/resolv.conf": "",  # no network, so no resolver
}
_LINKS: Final = {
    "/dev/fd": "/proc/self/fd",
    "/dev/stdin": "/proc/self/fd/0",
    "/dev/stdout": "/proc/self/fd/1",
    "/dev/stderr": "/proc/self/fd/2",
    "/dev/shm": TMP,  # noqa: S108 - POSIX shared memory counts against the sandbox's own tmpfs
    "/var/tmp": TMP,  # noqa: S108 - as above
}
_QUIET: Final = syscalls.MS_NOSUID | syscalls.MS_NODEV


def enter(base: str, readonly_paths: Sequence[str], uids: Sequence[int], *, make_devices: bool) -> None:
    """Build the root on the empty directory `base` and pivot into it; the host's tree is gone afterwards.

    `readonly_paths` appear at their own path. `make_devices` is false in a user namespace, where device nodes can
    only be bound from the host. Raises OSError naming the mount that failed.
    """
    syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.mount("tmpfs", base, "tmpfs", _QUIET, "size=4m,mode=755")
    for directory in ("/etc", "/dev", "/proc", "/var", "/root", WORK, TMP):
        os.mkdir(base + directory, 0o755)
    _show_system(base, readonly_paths)
    write_etc(base, uids)
    _fill_dev(base, make_devices=make_devices)
    for name, target in _LINKS.items():
        os.symlink(target, base + name)
    _freeze(base + "/dev", syscalls.MS_NOSUID | syscalls.MS_NOEXEC)
    # While the host's /proc is still in sight: the kernel gives a user namespace no better view than it has already.
    syscalls.mount("proc", base + "/proc", "proc", _QUIET | syscalls.MS_NOEXEC)
    os.chdir(base)
    syscalls.pivot_root(".", ".")
    syscalls.detach(".")
    os.chdir("/")
    _freeze("/", _QUIET)


def mount_trees(uid: int, work_bytes: int, tmp_bytes: int, inodes: int) -> None:
    """The sandbox's own /work and /tmp. Full means ENOSPC; the pages count as the sandbox's memory."""
    owner = f"uid={uid},gid={uid}" if os.getuid() == 0 else f"uid={os.getuid()},gid={os.getgid()}"
    syscalls.mount("tmpfs", WORK, "tmpfs", _QUIET, f"size={work_bytes},nr_inodes={inodes},mode=700,{owner}")
    syscalls.mount("tmpfs", TMP, "tmpfs", _QUIET, f"size={tmp_bytes},nr_inodes={inodes},mode=1777,{owner}")


def mount_proc() -> None:
    """The sandbox's own /proc."""
    syscalls.mount("proc", "/proc", "proc", _QUIET | syscalls.MS_NOEXEC)


def _show_system(base: str, readonly_paths: Sequence[str]) -> None:
    for path in (*_SYSTEM, *readonly_paths):
        if not os.path.lexists(path) or os.path.lexists(base + path):
            continue
        if os.path.islink(path):
            os.symlink(os.readlink(path), base + path)
        else:
            os.makedirs(base + path, 0o755)
            _bind(path, base + path)


def _bind(source: str, target: str) -> None:
    syscalls.mount(source, target, None, syscalls.MS_BIND)
    _freeze(target, _QUIET)


def _freeze(target: str, flags: int) -> None:
    syscalls.mount("none", target, None, syscalls.MS_REMOUNT | syscalls.MS_BIND | syscalls.MS_RDONLY | flags)


def write_etc(base: str, uids: Sequence[int]) -> None:
    """Files of /etc below `base`: users of the sandboxes, no resolver, what programs need of the host's."""
    users = "".join(f"agent:x:{uid}:{uid}:agent:{WORK}:/bin/sh\n" for uid in uids)
    groups = "".join(f"agent:x:{uid}:\n" for uid in uids)
    texts = dict(_FIXED)
    texts["/etc/passwd"] = "root:x:0:0:root:/root:/bin/sh\n" + users
    texts["/etc/group"] = "root:x:0:\n" + groups
    for path in _COPIED:
        if os.path.islink(path):
            os.symlink(os.readlink(path), base + path)
        elif os.path.isfile(path):
            with open(path, "rb") as source, open(base + path, "wb") as target:
                target.write(source.read())
    for path, text in texts.items():
        with open(base + path, "w", encoding="utf-8") as file:
            file.write(text)


def _fill_dev(base: str, *, make_devices: bool) -> None:
    syscalls.mount(
        "tmpfs", base + "/dev", "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NOEXEC, "size=64k,mode=755"
    )
    for name, (major, minor) in _DEVICES.items():
        path = f"{base}/dev/{name}"
        if make_devices:
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))
            os.chmod(path, 0o666)  # noqa: S103 - /dev/null and its kin are for everybody
        else:
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o666))
            syscalls.mount(f"/dev/{name}", path, None, syscalls.MS_BIND)
