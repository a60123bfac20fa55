"""What the processes of a sandbox are told, and in which order."""

import os
import signal
import subprocess
import sys

import pytest

from temper.sandbox.engine.guest import processes


def test_parents_are_told_before_their_children(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []

    def kill(pid: int, number: int) -> None:
        told.append((pid, number))
        if pid == 40:
            raise ProcessLookupError

    monkeypatch.setattr(os, "kill", kill)
    processes.send({4000, 40, 7, 333}, signal.SIGTERM)
    assert told == [(7, 15), (40, 15), (333, 15), (4000, 15)]  # one that is gone stops nobody


LINEAGE = """
import os, signal, time
from temper.sandbox.engine.guest import processes, syscalls
syscalls.become_subreaper()
said = [processes.childless()]
reader, writer = os.pipe()
if (parent := os.fork()) == 0:
    if os.fork() == 0:
        os.write(writer, b"%d" % os.getpid())
        time.sleep(60)
    os._exit(0)
os.waitpid(parent, 0)
orphan = int(os.read(reader, 32))
said.append(processes.childless())  # the orphan is its child now
os.kill(orphan, signal.SIGKILL)
said.append(processes.childless())
os.waitpid(orphan, 0)
said.append(processes.childless())
print(said)
"""


def test_a_subreaper_is_childless_only_when_nothing_is_left_below_it() -> None:
    done = subprocess.run([sys.executable, "-c", LINEAGE], capture_output=True, text=True, check=True)
    assert done.stdout == "[True, False, False, True]\n"
