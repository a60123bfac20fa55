"""Exhaustion: what one sandbox takes must run out for itself, be typed, and come back to the host afterwards."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.conformance.sandbox.attacks import LIBC, code, said, shell, within
from tests.conformance.sandbox.conftest import LIMITS

from temper.sandbox.engine.base import Backend, Command, Outcome, Sandbox

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.usefixtures("isolated", "programs"),
]
Enforces = Callable[[str], None]

BOMBS = {
    "fork": "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
    "daemons": (
        "import os\nwhile True:\n    try:\n        if os.fork() == 0:\n            os.setsid(); os.fork()\n"
        "    except OSError:\n        pass"
    ),
    "vfork": (
        "import subprocess\nheld = []\nwhile True:\n    try:\n        held.append(subprocess.Popen(['sleep', '600']))\n"
        "    except OSError:\n        pass"
    ),
    "threads": (
        "import threading, time\nwhile True:\n    try:\n        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
        "    except RuntimeError:\n        pass"
    ),
}
HOGS = {
    "private memory": "x = bytearray(1 << 30)",
    "shared anonymous memory": "import mmap\nm = mmap.mmap(-1, 1 << 30)\nfor i in range(0, 1 << 30, 4096): m[i] = 1",
    "a memory file": "fd = os.memfd_create('m')\nb = b'x' * (1 << 20)\nfor _ in range(1024): os.write(fd, b)",
    "an unlinked memory file per process": (
        "b = b'x' * (1 << 20)\nfor _ in range(20):\n    if os.fork() == 0:\n        fd = os.memfd_create('m')\n"
        "        for _ in range(64): os.write(fd, b)\n        os.kill(os.getpid(), 19)\n"
        "import time; time.sleep(600)"
    ),
    "System V shared memory": (
        "libc.shmat.restype = ctypes.c_void_p\nfor _ in range(64):\n    i = libc.shmget(0, ctypes.c_size_t(16 << 20), 0o1600)\n"
        "    ctypes.memset(libc.shmat(i, None, 0), 1, 16 << 20)"
    ),
    "fresh stacks": "import threading\nthreading.stack_size(64 << 20)\ndef f(n): x = bytearray(32 << 20); f(n + 1)\nf(0)",
}


@pytest.mark.parametrize("name", list(BOMBS))
async def test_a_bomb_of_processes_is_refused_at_its_limit_and_swept(
    sandbox: Sandbox, enforces: Enforces, name: str
) -> None:
    enforces("pids")
    result = await sandbox.python(BOMBS[name], within(1.5))
    assert result.outcome in {Outcome.TIMED_OUT, Outcome.PIDS_EXCEEDED}
    assert result.evidence.refused_forks > 0
    assert int(await said(sandbox, "ls -d /proc/[0-9]* | wc -l")) < 8


@pytest.mark.parametrize("name", list(HOGS))
async def test_a_hog_of_memory_is_killed_typed_and_gives_it_back(
    sandbox: Sandbox, enforces: Enforces, name: str
) -> None:
    enforces("memory_bytes")
    result = await sandbox.python(LIBC + HOGS[name], within(20.0))
    assert result.outcome is Outcome.OOM_KILLED, result
    assert result.evidence.peak_memory_bytes <= LIMITS.memory_bytes + (4 << 20)
    await sandbox.reset()
    after = await sandbox.python("x = bytearray(64 << 20); len(x)", LIMITS)
    assert after.stdout == b"67108864\n"


@pytest.mark.parametrize("tree", ["/work", "/tmp", "/dev/shm", "/var/tmp"])
async def test_every_tree_that_can_be_written_has_a_quota(
    sandbox: Sandbox, enforces: Enforces, tree: str
) -> None:
    enforces("disk_bytes")
    if await said(sandbox, f"[ -w {tree} ] && echo yes") != "yes":
        return  # nothing there to bound
    result = await shell(sandbox, f"cat /dev/zero > {tree}/big")
    assert result.outcome is Outcome.DISK_FULL
    assert int(await said(sandbox, f"find {tree}/big -printf %s")) <= LIMITS.disk_bytes


async def test_no_other_tree_can_be_written(sandbox: Sandbox) -> None:
    found = await said(sandbox, "find / -xdev -type d -writable 2>/dev/null; find /dev -type d -writable")
    assert set(found.splitlines()) <= {"/work", "/tmp", "/dev/shm"}  # each has its quota: the test above


async def test_a_deleted_file_that_is_held_open_still_counts(sandbox: Sandbox, enforces: Enforces) -> None:
    enforces("disk_bytes")
    text = (
        "fd = os.open('/work/x', os.O_CREAT | os.O_WRONLY)\nos.unlink('/work/x')\n"
        "def fill():\n    while True: os.write(fd, bytes(1 << 20))\nprint(attempt(fill), attempt(lambda: os.write(os.open('/work/y', 65), bytes(1 << 20))))"
    )
    assert await code(sandbox, text) == "ENOSPC ENOSPC"


async def test_running_out_of_inodes_is_a_full_disk(backend: Backend, enforces: Enforces) -> None:
    enforces("inodes")
    text = "def fill():\n    n = 0\n    while True:\n        os.close(os.open(f'/work/{n}', os.O_CREAT | os.O_WRONLY)); n += 1\n"
    sandbox = await backend.create("few", replace(LIMITS, inodes=500))
    try:
        result = await sandbox.python(LIBC + text + "print(attempt(fill))", LIMITS)
    finally:
        await sandbox.destroy()
    assert result.stdout == b"ENOSPC\n"
    assert result.outcome is Outcome.DISK_FULL


async def test_a_sparse_file_is_bounded_by_the_file_size_limit(sandbox: Sandbox) -> None:
    result = await sandbox.execute(Command(("truncate", "-s", "2T", "/work/sparse")), LIMITS)
    assert result.exit_code != 0 or result.signal == 25  # SIGXFSZ


async def test_open_sockets_and_pipes_do_not_take_memory_that_nobody_counts(
    sandbox: Sandbox, enforces: Enforces
) -> None:
    enforces("memory_bytes")
    text = """
import socket, resource
for _ in range(24):
    if os.fork() == 0:
        held = []
        try:
            while True:
                a, b = socket.socketpair(); held += [a, b]; a.setblocking(False)
                try:
                    while True: a.send(bytes(65536))
                except BlockingIOError: pass
        except OSError: pass
        os.kill(os.getpid(), 19)
import time; time.sleep(600)
"""
    result = await sandbox.python(LIBC + text, within(4.0))
    assert result.outcome in {Outcome.OOM_KILLED, Outcome.TIMED_OUT}
    assert result.evidence.peak_memory_bytes <= LIMITS.memory_bytes + (4 << 20)


async def test_a_storm_of_signals_hits_only_its_sender(backend: Backend, sandbox: Sandbox) -> None:
    other = await backend.create("bystander", LIMITS)
    try:
        line = "for i in $(seq 300); do kill -USR1 1; kill -HUP 1; kill -CHLD 1; kill -CONT 1; done; kill -USR1 -1"
        await shell(sandbox, line)
        assert await said(sandbox, "echo on") == "on"
        assert await said(other, "echo on") == "on"
    finally:
        await other.destroy()


async def test_queued_signals_run_out_for_the_sender_alone(backend: Backend, sandbox: Sandbox) -> None:
    text = "import signal\nsignal.pthread_sigmask(0, range(34, 64))\nfor _ in range(200000):\n    if libc.sigqueue(os.getpid(), 40, None): break\nprint('end')"
    other = await backend.create("bystander", LIMITS)
    try:
        assert "end" in await code(sandbox, text)
        assert await code(other, "print(libc.sigqueue(os.getpid(), 0, None))") == "0"
    finally:
        await other.destroy()


@pytest.mark.parametrize("victim", ["os.getpid()", "-1"])
async def test_stopping_every_process_is_a_timeout_and_no_hang(sandbox: Sandbox, victim: str) -> None:
    result = await sandbox.python(
        f"import os, subprocess\np = subprocess.Popen(['sleep', '600'])\nos.kill({victim}, 19)\nos.kill(os.getpid(), 19)",
        within(0.5),
    )
    assert result.outcome is Outcome.TIMED_OUT
    assert await said(sandbox, "echo on") == "on"


async def test_output_on_both_streams_at_once_is_cut_on_both(sandbox: Sandbox) -> None:
    result = await shell(sandbox, "head -c 3000000 /dev/zero | tee /dev/stderr")
    assert result.truncated
    assert all(len(each) < LIMITS.output_bytes + 64 for each in (result.stdout, result.stderr))


async def test_who_writes_on_after_its_command_has_ended_harms_nobody(sandbox: Sandbox) -> None:
    first = await shell(sandbox, "(trap '' PIPE; while :; do echo noise; done) 2>/dev/null & echo first >&2")
    assert b"first" in first.stderr
    second = await shell(sandbox, "echo second")
    assert (second.stdout, second.outcome) == (b"second\n", Outcome.OK)


async def test_what_system_v_keeps_is_not_charged_to_the_next_tenant(
    sandbox: Sandbox, enforces: Enforces
) -> None:
    enforces("memory_bytes")
    text = """
libc.shmat.restype = ctypes.c_void_p
for _ in range(8):
    i = libc.shmget(0, ctypes.c_size_t(16 << 20), 0o1600)
    a = libc.shmat(i, None, 0)
    ctypes.memset(a, 1, 16 << 20)
for _ in range(4096):
    q = libc.msgget(0, 0o1600)
    if q < 0: break
    while libc.msgsnd(q, b"\\1" * 8200, 8192, 0o4000) == 0: pass
"""
    await code(sandbox, text)
    await sandbox.reset()
    assert await code(sandbox, "x = bytearray(150 << 20); len(x)") == str(150 << 20)


async def test_what_ignores_every_signal_dies_at_the_limit(sandbox: Sandbox) -> None:
    text = "import signal, time\nfor n in range(1, 64):\n    try: signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError): pass\nwhile True: time.sleep(1)"
    result = await sandbox.python(text, replace(LIMITS, wall_s=0.5, grace_s=0.05))
    assert result.outcome is Outcome.TIMED_OUT
    assert await code(sandbox, "print('on')") == "on"


async def test_daemons_of_an_ended_agent_are_dead_before_anything_else_happens(sandbox: Sandbox) -> None:
    line = "for i in 1 2 3; do setsid sh -c \"trap '' TERM HUP INT; while :; do date +%N > /work/beat; done\" & done"
    await shell(sandbox, line)
    await sandbox.quiesce()
    before = await _beat(sandbox)
    assert await said(sandbox, "for s in /proc/[0-9]*/comm; do cat $s; done | sort -u | grep -c date") == "0"
    assert await _beat(sandbox) == before


async def _beat(sandbox: Sandbox) -> str:
    return await said(sandbox, "cat /work/beat 2>/dev/null")
