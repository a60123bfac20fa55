# ruff: noqa: PTH123 - pathlib would lie in every sandbox's memory for nothing
"""The pre-forked launcher: one process per host that has Python loaded and forks sandboxes out of itself.

It starts by exec with an empty environment, so nothing of the service is in its memory. It becomes process 1 of its
own pid namespace: when it dies, for whatever reason, the kernel kills every sandbox below it; and it dies with the
service (parent-death signal, and end of file on the socket).

Run as `python -S -s -P -B -c "... launcher.main(fd)"` with a socket to the host; the first message configures it.
"""

import contextlib
import gc
import os
import signal
import socket
import sys
from typing import Any, Final, NoReturn

from temper.sandbox.engine.guest import init, root, seccomp, syscalls, wire

# Loaded here so that a sandbox's first import of them is free and their pages are shared.
PRELOADED: Final = (
    "bisect",
    "collections",
    "cmath",
    "datetime",
    "decimal",
    "fractions",
    "functools",
    "heapq",
    "itertools",
    "json",
    "math",
    "operator",
    "random",
    "re",
    "statistics",
    "string",
    "textwrap",
    "typing",
)  # fmt: skip - a list of names reads better in three lines

_OWN_NAMESPACES: Final = (
    syscalls.CLONE_NEWNS | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS | syscalls.CLONE_NEWNET
)


def main(descriptor: int) -> NoReturn:
    """Configure from the first message, then serve `create` requests until the host hangs up."""
    syscalls.die_with_parent(signal.SIGKILL)
    host = socket.socket(fileno=descriptor)
    received = wire.receive(host)
    if received is None:
        sys.exit(0)
    configuration, _ = received
    try:
        _start(host, configuration)
    except OSError as error:
        wire.send(host, {"event": "failed", "error": str(error)})
        sys.exit(1)
    sys.exit(0)


def _start(host: socket.socket, configuration: dict[str, Any]) -> None:
    if not configuration["isolated"]:
        _serve(host, configuration)
        return
    if configuration["user_namespace"]:
        _map_user()
    syscalls.unshare(_OWN_NAMESPACES)
    pid, pidfd = syscalls.clone(syscalls.CLONE_NEWPID)
    if pid:
        host.close()
        os.close(pidfd)
        os.waitpid(pid, 0)
        return
    syscalls.die_with_parent(signal.SIGKILL)
    try:
        root.enter(
            configuration["base"],
            configuration["readonly_paths"],
            configuration["uids"],
            make_devices=not configuration["user_namespace"],
        )
        syscalls.drop_bounding_set()
        _serve(host, configuration)
    except OSError as error:
        wire.send(host, {"event": "failed", "error": str(error)})
    os._exit(0)


def _map_user() -> None:
    """Without privileges: a user namespace in which this one uid stands for itself and holds all capabilities."""
    uid, gid = os.getuid(), os.getgid()
    syscalls.unshare(syscalls.CLONE_NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def _serve(host: socket.socket, configuration: dict[str, Any]) -> None:
    for name in PRELOADED:
        __import__(name)
    isolated: bool = configuration["isolated"]
    filter_program = seccomp.program() if isolated else b""
    if not isolated:
        syscalls.become_subreaper()
    signal.signal(
        signal.SIGCHLD, signal.SIG_IGN
    )  # sandboxes are reaped by the kernel; the host holds their pidfds
    gc.collect()
    gc.disable()
    gc.freeze()  # a collection in a child would copy every page it touches
    wire.send(host, {"event": "ready"})
    flags = syscalls.CLONE_NEWPID if isolated else 0
    while (received := wire.receive(host)) is not None:
        request, descriptors = received
        _create(host, configuration | request, descriptors, flags, filter_program)


def _create(
    host: socket.socket, request: dict[str, Any], descriptors: list[int], flags: int, filter_program: bytes
) -> None:
    """Fork one sandbox. `descriptors`: its control socket, then the cgroup files it joins by writing 0."""
    pidfd = -1
    try:
        pid, pidfd = syscalls.clone(flags)
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            host.detach()  # closed by number in init, with every other descriptor
            init.main(socket.socket(fileno=descriptors[0]), request, descriptors[1:], filter_program)
        wire.send(host, {"event": "created", "id": request["id"], "pid": pid}, [pidfd])
    except OSError as error:
        wire.send(host, {"event": "refused", "id": request["id"], "error": str(error)})
    finally:
        for descriptor in (*descriptors, pidfd):
            with contextlib.suppress(OSError):
                os.close(descriptor)
