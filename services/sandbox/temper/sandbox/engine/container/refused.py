"""The system calls that a container is refused, as an OCI profile.

The same calls as `guest.seccomp` refuses, by name, since the engine wants names and adds the architectures itself. The engine's own
default profile allows io_uring and AF_VSOCK, which no sandbox here has.
"""

import errno
from typing import Any, Final

DENIED: Final = (
    *("mount", "umount2", "pivot_root", "chroot"),
    *("open_tree", "move_mount", "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr"),
    *("unshare", "setns"),
    *("create_module", "init_module", "finit_module", "delete_module", "query_module", "get_kernel_syms"),
    *("kexec_load", "kexec_file_load", "reboot", "_sysctl"),
    *("ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "pidfd_getfd"),
    *("add_key", "request_key", "keyctl"),
    *("bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register"),
    *("adjtimex", "settimeofday", "clock_settime", "clock_adjtime"),
    *("quotactl", "quotactl_fd", "acct", "swapon", "swapoff", "sethostname", "setdomainname"),
    *("iopl", "ioperm", "syslog", "vhangup"),
    *(
        "name_to_handle_at",
        "open_by_handle_at",
        "lookup_dcookie",
        "fanotify_init",
        "fanotify_mark",
        "nfsservctl",
    ),
    *("mbind", "set_mempolicy", "get_mempolicy", "migrate_pages", "move_pages"),
)
"""Refused with EPERM."""
_NAMESPACE_FLAGS: Final = (
    *(0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000),
)
_FAMILIES: Final = frozenset({1, 2, 10, 16})
_HIGHEST: Final = max(_FAMILIES)


def profile() -> dict[str, Any]:
    """The filter as OCI's runtime specification has it, all architectures."""
    rules = [
        _rule(DENIED, errno.EPERM),
        _rule(("clone3",), errno.ENOSYS),
        *(_rule(("clone",), errno.EPERM, _when("MASKED_EQ", bit, bit)) for bit in _NAMESPACE_FLAGS),
        *(
            _rule(("socket",), errno.EAFNOSUPPORT, _when("EQ", family))
            for family in range(_HIGHEST)
            if family not in _FAMILIES
        ),
        _rule(("socket",), errno.EAFNOSUPPORT, _when("GT", _HIGHEST)),
    ]
    return {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": rules}


def _rule(names: tuple[str, ...], error: int, *conditions: dict[str, Any]) -> dict[str, Any]:
    rule: dict[str, Any] = {"names": list(names), "action": "SCMP_ACT_ERRNO", "errnoRet": error}
    return rule | ({"args": list(conditions)} if conditions else {})


def _when(comparison: str, value: int, second: int = 0) -> dict[str, Any]:
    return {"index": 0, "value": value, "valueTwo": second, "op": f"SCMP_CMP_{comparison}"}
