"""Closing the doors: how a freshly forked process becomes a sandbox that nothing leads out of.

The order matters, each step needs what the next one takes away: cgroup, namespaces, mounts, rlimits, uid,
capabilities, no-new-privileges, filter.
"""

import _socket
import contextlib
import os
import resource
import signal
import socket
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from temper.sandbox.engine.guest import root, syscalls, wire

CONTROL: Final = 3
"""Descriptor of the socket to the host, in init and (its own one) in the interpreter."""
OOM_SCORE: Final = 4
"""Descriptor of init's own oom_score_adj. The launcher keeps both numbers free of anything that matters."""

_NAMESPACES: Final = (
    syscalls.CLONE_NEWNS | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS | syscalls.CLONE_NEWCGROUP
)

_SYSTEM_V: Final = {"shm_rmid_forced": b"1", "msgmni": b"64"}


class Seal(NamedTuple):
    """What the launcher prepares once for all sandboxes. Example: `Seal(Filter(program()), {"RLIMIT_NOFILE": 4096})`."""

    filter: syscalls.Filter
    """Refused system calls."""
    hard_limits: Mapping[str, int]
    """Ceilings of this host that we may not raise, by name; absent means none."""


def enter(control: socket.socket, request: wire.Message, cgroups: Sequence[int], seal: Seal) -> socket.socket:
    """Returns the control socket; every other descriptor but `OOM_SCORE` is closed. Raises OSError."""
    isolated: bool = request["isolated"]
    walled = isolated and not request.get("boxed")  # an outer program has built the walls of a boxed one
    if not request.get("standby"):
        _begin(cgroups, isolated=walled)
    if walled:
        root.mount_trees(request["uid"], request["work_bytes"], request["tmp_bytes"], request["inodes"])
    os.chdir(request["directory"])
    os.umask(0o022)
    os.dup2(os.open("/proc/self/oom_score_adj", os.O_WRONLY), OOM_SCORE, inheritable=False)
    os.dup2(control.fileno(), CONTROL, inheritable=False)
    syscalls.close_from(OOM_SCORE + 1)
    for name, value in request["rlimits"].items():
        ceiling = min(value, seal.hard_limits.get(name, value))
        resource.setrlimit(getattr(resource, name), (ceiling, ceiling))
    if isolated:
        _drop_privileges(request["uid"], seal)
    else:
        os.setsid()
        syscalls.become_subreaper()
    control.detach()
    return wire.line(CONTROL)


def stand_by(control: socket.socket, cgroups: Sequence[int]) -> wire.Message | None:
    """Do all that does not depend on who comes, then wait for the request; None if nobody does. Raises OSError.

    Nothing of an agent runs here yet, and one standby becomes one sandbox.
    """
    _begin(cgroups, isolated=True)
    wire.decode(
        wire.encode({"event": "ready"})[4:]
    )  # pages that the codec writes to are copied now, not later
    received = wire.receive(control)
    return None if received is None else received[0]


def _begin(cgroups: Sequence[int], *, isolated: bool) -> None:
    # Python's own handler would let a command interrupt process 1.
    syscalls.handle_signal(signal.SIGINT, syscalls.DEFAULT_ACTION)
    for descriptor in cgroups:
        os.write(descriptor, b"0")
    if isolated:
        syscalls.unshare(_NAMESPACES)
        root.mount_proc()
        _bound_messages()
        _socket.sethostname("sandbox")


def _bound_messages() -> None:
    """Have System V memory die with its maker, and message queues stay small.

    The kernel frees what an ipc namespace still holds some time after its last process: until then it would count
    against the next tenant of the slot. Source: proc_sys_kernel(5).
    """
    for name, value in _SYSTEM_V.items():
        with contextlib.suppress(OSError):  # not ours to set in a user namespace of older kernels
            descriptor = os.open(f"/proc/sys/kernel/{name}", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(descriptor, value)
            finally:
                os.close(descriptor)


def _drop_privileges(uid: int, seal: Seal) -> None:
    if os.getuid() == 0:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    syscalls.drop_capabilities()
    syscalls.set_dumpable(dumpable=False)
    syscalls.no_new_privileges()
    seal.filter.install()
