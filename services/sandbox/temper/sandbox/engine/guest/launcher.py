# ruff: noqa: PTH123 - pathlib would lie in every sandbox's memory for nothing
"""The pre-forked launcher: one process per host that has Python loaded and forks sandboxes out of itself.

It starts by exec with an empty environment, so nothing of the service is in its memory. It becomes process 1 of its
own pid namespace: when it dies, for whatever reason, the kernel kills every sandbox below it; and it dies with the
service (parent-death signal, and end of file on the socket).

Run as `python -S -s -P -B -c "... launcher.main(fd)"` with a socket to the host; the first message configures it.
"""

import builtins
import contextlib
import gc
import os
import resource
import signal
import socket
import sys
from typing import Any, Final, NoReturn, TextIO

from temper.sandbox.engine.guest import init, interpreter, root, seccomp, syscalls, wire
from temper.sandbox.engine.guest.enter import CONTROL, OOM_SCORE, Seal, stand_by
from temper.sandbox.engine.guest.networks import Networks

# Loaded here so that a sandbox's first import of them is free and their pages are shared. Few: every shared library
# that the launcher has loaded costs each sandbox a little at its fork.
PRELOADED: Final = ("collections", "functools", "itertools", "json", "math", "operator", "re", "typing")

BIND_NOW: Final = "LD_BIND_NOW"
"""Has the linker look up every function before the first fork, and not in each child again. Source: ld.so(8)."""
_UNSET: Final = 0xFFFFFFFF
"""A login uid that nobody has set. Source: proc_pid_loginuid(5)."""
_OWN_NAMESPACES: Final = (
    syscalls.CLONE_NEWNS | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS | syscalls.CLONE_NEWNET
)


def main(descriptor: int) -> NoReturn:
    """Configure from the first message, then serve `create` requests until the host hangs up."""
    syscalls.die_with_parent(signal.SIGKILL)
    _settle_audit_identity()
    for number in (CONTROL, OOM_SCORE):
        if number != descriptor:
            os.dup2(0, number, inheritable=False)  # taken, so that nothing else gets these numbers
    host = socket.socket(fileno=os.dup(descriptor))
    os.dup2(0, descriptor, inheritable=False)
    received = wire.receive(host)
    if received is None:
        sys.exit(0)
    configuration, _ = received
    try:
        _start(host, configuration)
    except OSError as error:
        _report(host, error)
        sys.exit(1)
    sys.exit(0)


def _settle_audit_identity() -> None:
    """Whoever has no login uid may choose one, so a sandbox could sign the kernel's audit records as somebody else."""
    with contextlib.suppress(OSError), open("/proc/self/loginuid", "r+b", buffering=0) as file:
        if int(file.read()) == _UNSET:
            os.pwrite(file.fileno(), b"%d" % os.getuid(), 0)


def _report(connection: socket.socket, error: OSError) -> None:
    """Say why it did not work, if there is still someone to hear it."""
    with contextlib.suppress(OSError):
        wire.send(connection, {"event": "failed", "error": str(error)})


def _start(host: socket.socket, configuration: dict[str, Any]) -> None:
    if not configuration["isolated"]:
        _serve(host, configuration)
        return
    if configuration["user_namespace"]:
        _map_user()
    syscalls.unshare(_OWN_NAMESPACES)
    pid = syscalls.fork_first(_own_namespace())
    if pid:
        host.close()
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
        _report(host, error)
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
    seal = Seal(syscalls.Filter(seccomp.program() if isolated else b""), hard_limits())
    if not isolated:
        syscalls.become_subreaper()
    # The kernel reaps sandboxes by itself; the host holds their pidfds.
    syscalls.handle_signal(signal.SIGCHLD, syscalls.IGNORE)
    networks = Networks()
    os.environ.pop(BIND_NOW, None)
    known: dict[str, str] | None = configuration.get("environment")
    configuration["environment_stands"] = known is not None and known.items() <= os.environ.items()
    warm_up()
    gc.collect()
    syscalls.trim()
    gc.disable()
    gc.freeze()  # a collection in a child would copy every page it touches
    wire.send(host, {"event": "ready"})
    own = _own_namespace()
    while (received := wire.receive(host)) is not None:
        request, descriptors = received
        control = wire.line(descriptors[0])
        try:
            if isolated:
                networks.enter(request["slot"])
            if (syscalls.fork_first(own) if isolated else os.fork()) == 0:
                syscalls.handle_signal(signal.SIGCHLD, syscalls.DEFAULT_ACTION)
                host.detach()  # closed by number on entering, with every other descriptor
                if request.get("standby"):
                    request |= _await_request(control, descriptors[1:])
                if "program" in configuration | request:
                    from temper.sandbox.engine.guest import boxed

                    boxed.become(control, configuration | request, descriptors[1:])
                init.main(control, configuration | request, descriptors[1:], seal)
        except OSError as error:
            # Only a failure is answered here; otherwise init itself says when it is ready.
            _report(control, error)
        control.close()
        for descriptor in descriptors[1:]:
            os.close(descriptor)


def _await_request(control: socket.socket, cgroups: list[int]) -> dict[str, Any]:
    try:
        request = stand_by(control, cgroups)
    except OSError as error:
        _report(control, error)
        request = None
    if request is None:
        os._exit(0)
    return request


def _own_namespace() -> int:
    return os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)


def warm_up() -> None:
    """Do once what each interpreter does first, so that its tables are built before the fork and not after each."""
    sys.stdout = sys.__stdout__ = _text_stream(1)
    sys.stderr = sys.__stderr__ = _text_stream(2)
    namespace: dict[str, Any] = {"__builtins__": builtins}
    for code in ("import math\nx = 1\nx + 1", "print('a')", "1 / 0", "("):
        reply = wire.encode({"id": 1, "error": interpreter.run(code, namespace)})
        wire.Decoder().feed(reply)
    interpreter.flush()


def _text_stream(descriptor: int) -> TextIO:
    """Standard output as it is in a sandbox: no character can make printing fail."""
    return open(descriptor, "w", encoding="utf-8", errors="backslashreplace", closefd=False)


def hard_limits() -> dict[str, int]:
    """Ceilings of this host that we may not raise, by name of the limit."""
    names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    limits = {name: resource.getrlimit(getattr(resource, name))[1] for name in names}
    return {name: hard for name, hard in limits.items() if hard != resource.RLIM_INFINITY}
