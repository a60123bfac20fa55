# ruff: noqa: PTH123 - pathlib would lie in every sandbox's memory for nothing
"""Kernel calls that Python does not offer, through ctypes. Every failure is an OSError that names its call."""

import _signal  # pyright: ignore[reportMissingImports]  # see handle_signal
import contextlib
import ctypes
import fcntl
import os
import socket
import struct
from typing import Any, Final

CLONE_NEWNS: Final = 0x00020000
CLONE_NEWCGROUP: Final = 0x02000000
CLONE_NEWUTS: Final = 0x04000000
CLONE_NEWIPC: Final = 0x08000000
CLONE_NEWUSER: Final = 0x10000000
CLONE_NEWPID: Final = 0x20000000
CLONE_NEWNET: Final = 0x40000000
MS_RDONLY: Final = 1
MS_NOSUID: Final = 2
MS_NODEV: Final = 4
MS_NOEXEC: Final = 8
MS_REMOUNT: Final = 32
MS_BIND: Final = 4096
MS_REC: Final = 16384
MS_PRIVATE: Final = 1 << 18
MNT_DETACH: Final = 2

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_PR_SET_KEEPCAPS: Final = 8
_PR_CAPBSET_DROP: Final = 24
_PR_SET_SECCOMP: Final = 22
_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_SET_NO_NEW_PRIVS: Final = 38
_SECCOMP_MODE_FILTER: Final = 2
_CAPABILITY_VERSION_3: Final = 0x20080522
_CAPABILITY_HEADER: Final = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
_NO_CAPABILITIES: Final = bytes(24)
_DAC_READ_SEARCH: Final = 1 << 2
_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP_RUNNING: Final = 0x1 | 0x40

# The numbers differ by architecture; these are the two that temper's images are built for.
_NUMBERS: Final[dict[str, dict[str, int]]] = {
    "x86_64": {"capset": 126, "pivot_root": 155},
    "aarch64": {"capset": 91, "pivot_root": 41},
}

DEFAULT_ACTION: Final[Any] = _signal.SIG_DFL
IGNORE: Final[Any] = _signal.SIG_IGN
"""Actions for `handle_signal`: the raw ones, not the enumeration's members."""

# PyDLL holds the interpreter lock over the call: a raw clone must not race another thread for it, and the calls
# are too short to be worth releasing it.
_libc = ctypes.PyDLL(None, use_errno=True)


def _check(result: int, call: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{call}: {os.strerror(code)}")
    return result


def supported() -> bool:
    """Whether this machine's system call numbers are known here."""
    return os.uname().machine in _NUMBERS


def _number(name: str) -> int:
    return _NUMBERS[os.uname().machine][name]


# Looked up once: the first use of a name builds an object, and in a child that would copy pages for each sandbox.
_unshare = _libc.unshare
_setns = _libc.setns
_mount = _libc.mount
_umount2 = _libc.umount2
_call_prctl = _libc.prctl
_syscall = _libc.syscall


def fork_first(own_namespace: int) -> int:
    """`os.fork`, the child being process 1 of a fresh pid namespace; `own_namespace` is this process's, held open.

    A raw `clone` would do in one call, but leaves through ctypes in the child and copies twice as many pages.
    """
    _check(_setns(own_namespace, CLONE_NEWPID), "setns")  # back from the namespace of the last child
    _check(_unshare(CLONE_NEWPID), "unshare")
    return os.fork()


def unshare(flags: int) -> None:
    """Move this process into new namespaces."""
    _check(_unshare(flags), "unshare")


def enter_network(descriptor: int) -> None:
    """Move this process into the network namespace behind the descriptor."""
    _check(_setns(descriptor, CLONE_NEWNET), "setns")


def mount(source: str, target: str, kind: str | None, flags: int = 0, options: str | None = None) -> None:
    """Attach a file system at `target`."""
    result = _mount(
        source.encode(),
        target.encode(),
        kind.encode() if kind is not None else None,
        ctypes.c_ulong(flags),
        options.encode() if options is not None else None,
    )
    _check(result, f"mount {target}")


def detach(target: str) -> None:
    """Unmount lazily: gone from the tree at once."""
    _check(_umount2(target.encode(), MNT_DETACH), f"umount {target}")


def pivot_root(new_root: str, put_old: str) -> None:
    """Make `new_root` the root and hang the old one on `put_old`."""
    _check(_syscall(_number("pivot_root"), new_root.encode(), put_old.encode()), "pivot_root")


def _prctl(option: int, argument: int, pointer: object = 0) -> None:
    _check(_call_prctl(option, ctypes.c_ulong(argument), pointer, 0, 0), f"prctl {option}")


def die_with_parent(signal_number: int) -> None:
    """Have the kernel send the signal when the parent thread is gone, however it died."""
    _prctl(_PR_SET_PDEATHSIG, signal_number)


def set_dumpable(*, dumpable: bool) -> None:
    """A process that is not dumpable cannot be traced or read through /proc by others of its uid."""
    _prctl(_PR_SET_DUMPABLE, int(dumpable))


def become_subreaper() -> None:
    """Adopt the orphans among this process's descendants."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def no_new_privileges() -> None:
    """Set-uid bits and file capabilities mean nothing from here on."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def drop_bounding_set() -> None:
    """No program executed from here on can gain a capability."""
    with open("/proc/sys/kernel/cap_last_cap") as file:
        last = int(file.read())
    for capability in range(last + 1):
        _prctl(_PR_CAPBSET_DROP, capability)


def drop_capabilities() -> None:
    """Give up every capability in every set of this process."""
    _check(_syscall(_number("capset"), _CAPABILITY_HEADER, _NO_CAPABILITIES), "capset")


def become_reader(uid: int) -> None:
    """Become another user who may read everything and no more: no file of ours can be written, no process signalled."""
    _prctl(_PR_SET_KEEPCAPS, 1)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    reading = struct.pack("=6I", _DAC_READ_SEARCH, _DAC_READ_SEARCH, 0, 0, 0, 0)
    _check(_syscall(_number("capset"), _CAPABILITY_HEADER, reading), "capset")
    set_dumpable(dumpable=True)


class _SockFprog(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


class Filter:
    """A seccomp filter in the form the kernel takes. `program` is an array of `struct sock_filter`, 8 bytes each."""

    def __init__(self, program: bytes) -> None:
        self._buffer = ctypes.create_string_buffer(program, len(program))
        self._head = _SockFprog(len(program) // 8, ctypes.addressof(self._buffer))

    def install(self) -> None:
        """Bind this process and all it will ever start."""
        _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(self._head))


def loopback_up() -> None:
    """Bring up `lo` in the present network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        fcntl.ioctl(probe, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP_RUNNING))


def trim() -> None:
    """Give the kernel back what the allocator holds for nothing: each page that is mapped costs at every fork and every end."""
    with contextlib.suppress(AttributeError):  # not every libc has it
        _libc.malloc_trim(0)


def handle_signal(number: int, action: Any) -> None:
    """`signal.signal` without its detour over enumerations, which costs each sandbox a tenth of a millisecond."""
    _signal.signal(number, action)


def close_from(first: int) -> None:
    """Close every descriptor from `first` up; one system call."""
    os.closerange(first, 1 << 20)
