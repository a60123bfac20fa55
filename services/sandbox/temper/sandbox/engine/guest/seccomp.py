"""The deny-list of system calls, as a classic BPF program.

A refused call returns EPERM, so a program that probes for a feature goes on without it. `clone3` returns ENOSYS
instead: its flags lie in memory where a filter cannot look, and libc then falls back to `clone`, whose flags we check.
Layout of `struct seccomp_data`: nr at 0, arch at 4, args (64 bit each) from 16. Source: seccomp(2).
"""

import errno
import os
import struct
from typing import Final

_LOAD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS
_EQUAL: Final = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_AT_LEAST: Final = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_ANY_BIT: Final = 0x45  # BPF_JMP | BPF_JSET | BPF_K
_JUMP: Final = 0x05  # BPF_JMP | BPF_JA
_RETURN: Final = 0x06  # BPF_RET | BPF_K

_ALLOW: Final = 0x7FFF0000
_KILL_PROCESS: Final = 0x80000000
_ERRNO: Final = 0x00050000

_NUMBER: Final = 0
_ARCHITECTURE: Final = 4
_FIRST_ARGUMENT: Final = 16

# Every CLONE_NEW* flag: a nested user namespace would hand back the capabilities that init gave up.
_NAMESPACES: Final = 0x7E020000
_X32_BIT: Final = 0x40000000

_AUDIT: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# Mounting and roots; modules and the kernel; other processes' memory; keys, tracing and new kernel surfaces with a
# record of holes (bpf, perf, userfaultfd, io_uring); clocks, quotas and names of the machine.
_DENIED: Final[dict[str, tuple[int, ...]]] = {
    "x86_64": (
        *(
            165,
            166,
            155,
            161,
            428,
            429,
            430,
            431,
            432,
            433,
            442,
        ),  # mount umount2 pivot_root chroot, new mount API
        *(272, 308),  # unshare setns
        *(175, 313, 176, 174, 246, 320, 169, 177, 178, 156),  # modules, kexec, reboot, _sysctl
        *(101, 310, 311, 312, 438),  # ptrace, process_vm_*, kcmp, pidfd_getfd
        *(248, 249, 250),  # add_key request_key keyctl
        *(321, 298, 323, 425, 426, 427),  # bpf perf_event_open userfaultfd io_uring_*
        *(159, 164, 227, 305),  # adjtimex settimeofday clock_settime clock_adjtime
        *(
            179,
            443,
            163,
            167,
            168,
            170,
            171,
            103,
            172,
            173,
            153,
        ),  # quota, acct, swap, names, syslog, ports, vhangup
        *(303, 304, 212, 300, 301, 180),  # *_by_handle_at, lookup_dcookie, fanotify, nfsservctl
        *(237, 238, 239, 256, 279),  # NUMA policy and page moves
    ),
    "aarch64": (
        *(40, 39, 41, 51, 428, 429, 430, 431, 432, 433, 442),
        *(97, 268),
        *(105, 273, 106, 104, 294, 142),
        *(117, 270, 271, 272, 438),
        *(217, 218, 219),
        *(280, 241, 282, 425, 426, 427),
        *(171, 170, 112, 266),
        *(60, 443, 89, 224, 225, 161, 162, 116, 58),
        *(264, 265, 18, 262, 263, 42),
        *(235, 236, 237, 238, 239),
    ),
}
_CLONE: Final = {"x86_64": 56, "aarch64": 220}
_CLONE3: Final = 435
_SOCKET: Final = {"x86_64": 41, "aarch64": 198}
# AF_UNIX, AF_INET, AF_INET6, AF_NETLINK. Not every other family knows network namespaces: AF_VSOCK would reach the
# hypervisor from inside a sandbox without a network.
_FAMILIES: Final = (1, 2, 10, 16)


def _instruction(code: int, constant: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, constant)


def program(machine: str | None = None) -> bytes:
    """The filter for this machine. Raises KeyError on an architecture without a table."""
    machine = machine or os.uname().machine
    refuse = _instruction(_RETURN, _ERRNO | errno.EPERM)
    lines = [
        _instruction(_LOAD, _ARCHITECTURE),
        _instruction(_EQUAL, _AUDIT[machine], 1, 0),
        _instruction(_RETURN, _KILL_PROCESS),
        _instruction(_LOAD, _NUMBER),
    ]
    if machine == "x86_64":  # the x32 numbers would walk around the list
        lines += [_instruction(_AT_LEAST, _X32_BIT, 0, 1), refuse]
    lines += [_instruction(_EQUAL, _CLONE3, 0, 1), _instruction(_RETURN, _ERRNO | errno.ENOSYS)]
    lines += _search(sorted(_DENIED[machine]), refuse)
    lines += _families(_SOCKET[machine])
    lines += [
        _instruction(_EQUAL, _CLONE[machine], 0, 2),
        _instruction(_LOAD, _FIRST_ARGUMENT),
        _instruction(_ANY_BIT, _NAMESPACES, 1, 0),
        _instruction(_RETURN, _ALLOW),
        refuse,
    ]
    return b"".join(lines)


def _families(socket: int) -> list[bytes]:
    """Refuse sockets of all but a few families; falls through for other calls, the number still loaded."""
    count = len(_FAMILIES)
    tests = [_instruction(_EQUAL, family, count - index, 0) for index, family in enumerate(_FAMILIES)]
    return [
        _instruction(_EQUAL, socket, 0, count + 3),
        _instruction(_LOAD, _FIRST_ARGUMENT),
        *tests,
        _instruction(_RETURN, _ERRNO | errno.EAFNOSUPPORT),
        _instruction(_RETURN, _ALLOW),
    ]


def _search(numbers: list[int], refuse: bytes) -> list[bytes]:
    """A binary search: the kernel runs the program once for every system call there is when it is loaded.

    Falls through to what follows when the number is not in the list.
    """
    if len(numbers) <= 4:
        tests = [
            _instruction(_EQUAL, number, len(numbers) - index, 0) for index, number in enumerate(numbers)
        ]
        return [*tests, _instruction(_JUMP, 1), refuse]
    middle = len(numbers) // 2
    low, high = _search(numbers[:middle], refuse), _search(numbers[middle:], refuse)
    split = _instruction(_AT_LEAST, numbers[middle], len(low) + 1, 0)
    return [split, *low, _instruction(_JUMP, len(high)), *high]
