"""A sandbox whose walls an outer program builds: the launcher becomes that program, the program becomes init.

    launcher -> fork -> `become`: joins the control group, executes the program
    program  -> namespaces and mounts -> python -> `main`: takes the slot's uid, closes the remaining doors, is process 1

What init needs to know lies in a memory file, not in the command line, which everyone can read.
"""

import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

from temper.sandbox.engine.guest import init, launcher, seccomp, syscalls, wire
from temper.sandbox.engine.guest.enter import CONTROL, Seal

REQUEST: Final = 4
"""Descriptor of the memory file with the request."""


def become(control: socket.socket, request: wire.Message, cgroups: Sequence[int]) -> NoReturn:
    """Turn this forked child into `request["program"]`. Raises OSError."""
    for descriptor in cgroups:
        os.write(descriptor, b"0")
    told = os.memfd_create("request")
    os.write(told, json.dumps(request).encode())
    os.lseek(told, 0, os.SEEK_SET)
    connection = os.dup(control.fileno())
    os.dup2(connection, CONTROL)
    os.dup2(told, REQUEST)
    syscalls.close_from(REQUEST + 1)
    syscalls.die_with_parent(signal.SIGKILL)
    if request.get(
        "speaks"
    ):  # a program that is no init of ours: we say who it is, it says on its output that it is ready
        with socket.socket(fileno=os.dup(CONTROL)) as line:
            wire.send(line, {"event": "begun"}, [os.pidfd_open(os.getpid())])
        os.dup2(CONTROL, 1)
        os.dup2(CONTROL, 2)
    program: list[str] = request["program"]
    os.execv(program[0], program)  # noqa: S606 - a shell is the last thing wanted here


def main() -> NoReturn:
    """Process 1 inside the walls: never returns."""
    control = socket.socket(fileno=os.dup(CONTROL))
    with open(REQUEST, "rb", closefd=False) as file:  # its number stays taken until init needs it
        request: wire.Message = json.load(file)
    os.environ.clear()  # of what the outer program and Python's start have put there
    os.environ.update(request["environment"])
    request["environment_stands"] = True
    if os.getuid() == 0:
        _own_trees(request)
        syscalls.drop_bounding_set()
    for name in launcher.PRELOADED:
        __import__(name)
    launcher.warm_up()
    seal = Seal(syscalls.Filter(seccomp.program()), launcher.hard_limits())
    sys.argv = [""]
    init.main(control, request, (), seal)


def _own_trees(request: wire.Message) -> None:
    """The writable trees belong to the slot's uid; the outer program can bound their bytes only, so their files here."""
    for tree in request["shared"]:
        os.chown(tree, request["uid"], request["uid"])
        options = f"size={request['work_bytes']},nr_inodes={request['inodes']}"
        syscalls.mount(
            "none", tree, None, syscalls.MS_REMOUNT | syscalls.MS_NOSUID | syscalls.MS_NODEV, options
        )
