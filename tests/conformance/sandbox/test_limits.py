"""What real programs do to a limit, and a limit to them."""

import asyncio
import resource
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.conformance.sandbox.conftest import ALL, LIMITS

from temper.runtime.errors import Exhausted, Rejected
from temper.runtime.testing import eventually
from temper.sandbox.engine.base import Backend, Command, Isolation, Outcome, Sandbox, Stream

BACKENDS = ALL
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("programs")]
Enforces = Callable[[str], None]


def shell(line: str) -> Command:
    return Command(("/bin/sh", "-c", line))


async def test_a_fork_bomb_meets_the_process_limit_and_the_sandbox_lives(
    sandbox: Sandbox, enforces: Enforces
) -> None:
    enforces("pids")
    # The bomb goes on behind a command that cannot end before a fork was refused.
    bomb = "b() { b | b & }; b; c() { c | c; }; c"
    result = await sandbox.execute(shell(bomb), replace(LIMITS, wall_s=10.0))
    assert result.outcome in {Outcome.PIDS_EXCEEDED, Outcome.TIMED_OUT}
    assert result.evidence.refused_forks > 0
    await sandbox.quiesce()
    assert (await sandbox.execute(shell("echo on"), LIMITS)).stdout == b"on\n"


async def test_a_memory_hog_is_killed_and_typed(sandbox: Sandbox, enforces: Enforces) -> None:
    enforces("memory_bytes")
    result = await sandbox.python("x = bytearray(400 << 20)", LIMITS)
    assert result.outcome is Outcome.OOM_KILLED
    assert result.evidence.oom_kills >= 1
    assert result.interpreter_lost
    assert result.evidence.peak_memory_bytes >= LIMITS.memory_bytes // 2
    assert (await sandbox.python("1", LIMITS)).stdout == b"1\n"


async def test_endless_output_is_cut_and_ended(sandbox: Sandbox) -> None:
    result = await sandbox.execute(shell("yes"), LIMITS)
    assert result.outcome is Outcome.OUTPUT_TRUNCATED
    assert result.truncated
    assert len(result.stdout) < LIMITS.output_bytes + 64


async def test_both_streams_are_kept_apart(sandbox: Sandbox) -> None:
    result = await sandbox.execute(shell("echo out; echo err >&2"), LIMITS)
    assert (result.stdout, result.stderr) == (b"out\n", b"err\n")


async def test_bytes_that_are_no_text_come_out_as_they_are(sandbox: Sandbox) -> None:
    result = await sandbox.execute(shell("printf '\\377\\000a'; exit 3"), LIMITS)
    assert (result.stdout, result.exit_code) == (b"\xff\x00a", 3)


async def test_a_timeout_takes_the_whole_tree_grandchildren_in_new_sessions_included(
    sandbox: Sandbox,
) -> None:
    line = "setsid sh -c 'setsid sleep 600 & sleep 600' & sleep 600"
    result = await sandbox.execute(shell(line), replace(LIMITS, wall_s=0.5))
    assert result.outcome is Outcome.TIMED_OUT
    left = await sandbox.execute(shell("for p in /proc/[0-9]*; do cat $p/comm; done"), LIMITS)
    assert b"sleep" not in left.stdout.split() or b"sleep" not in await own_processes(sandbox)


async def own_processes(sandbox: Sandbox) -> list[bytes]:
    """Names of the processes of this sandbox's user; under weak isolation the host's are seen too."""
    line = 'for p in /proc/[0-9]*; do [ "$(readlink $p/cwd)" = "$(pwd)" ] && cat $p/comm; done'
    return (await sandbox.execute(shell(line), LIMITS)).stdout.split()


async def test_a_command_gets_a_warning_before_it_is_killed(sandbox: Sandbox) -> None:
    line = "trap 'echo bye > said; exit' TERM; while :; do sleep 0.01; done"
    await sandbox.execute(shell(line), replace(LIMITS, wall_s=0.3, grace_s=5.0))
    assert await sandbox.get_file("/work/said", 10) == (b"bye\n", False)


async def test_a_foreground_command_does_not_wait_for_what_it_left_behind(sandbox: Sandbox) -> None:
    result = await sandbox.execute(shell("sleep 600 & echo hi"), LIMITS)
    assert (result.outcome, result.stdout) == (Outcome.OK, b"hi\n")
    assert (await sandbox.execute(shell("echo next"), LIMITS)).stdout == b"next\n"


async def test_reading_from_nowhere_ends_at_once(sandbox: Sandbox) -> None:
    assert (await sandbox.execute(shell("read x; echo $?"), LIMITS)).stdout == b"1\n"


async def test_cpu_time_is_limited_over_the_whole_tree(sandbox: Sandbox, enforces: Enforces) -> None:
    enforces("cpu_s")
    line = "(while :; do :; done) & while :; do :; done"
    result = await sandbox.execute(shell(line), replace(LIMITS, cpu_s=0.2, grace_s=0.0))
    assert result.outcome is Outcome.CPU_EXCEEDED
    assert result.evidence.cpu_s >= 0.2


async def test_endless_python_is_stopped_and_the_next_code_starts_afresh(sandbox: Sandbox) -> None:
    await sandbox.python("kept = 1", LIMITS)
    result = await sandbox.python("while True: pass", replace(LIMITS, wall_s=0.3))
    assert result.outcome is Outcome.TIMED_OUT
    assert result.interpreter_lost
    again = await sandbox.python("kept", LIMITS)
    assert again.error is not None
    assert again.error.startswith("NameError")


async def test_a_full_disk_is_enospc_and_typed_not_a_kill(sandbox: Sandbox, enforces: Enforces) -> None:
    enforces("disk_bytes")
    result = await sandbox.execute(shell("cat /dev/zero > /work/big"), LIMITS)
    assert result.outcome is Outcome.DISK_FULL
    assert b"No space left" in result.stderr
    with pytest.raises(Exhausted, match="full"):
        await sandbox.put_file("/work/more", b"x" * 100_000)


async def test_temporary_files_are_under_the_same_limit(sandbox: Sandbox, enforces: Enforces) -> None:
    enforces("disk_bytes")
    result = await sandbox.execute(shell("cat /dev/zero > /tmp/big"), LIMITS)
    assert result.outcome is Outcome.DISK_FULL


async def test_open_files_are_limited(sandbox: Sandbox) -> None:
    result = await sandbox.python("held = [open('/dev/null') for _ in range(100)]", LIMITS)
    assert result.error is not None
    assert "Too many open files" in result.error


async def test_no_zombie_is_left_after_many_commands(sandbox: Sandbox) -> None:
    for _ in range(30):
        await sandbox.execute(shell("(sleep 0 &) ; true"), LIMITS)
    # Children of process 1 that are dead and not collected; the shell itself is another child of it.
    line = "for s in /proc/[0-9]*/status; do grep -q '^State:.Z' $s && grep -q \"^PPid:.$PPID$\" $s && echo z; done 2>/dev/null"
    deadline = 200
    while (await sandbox.execute(shell(line), LIMITS)).stdout:
        deadline -= 1
        assert deadline, "zombies stay"


async def test_exit_inside_the_interpreter_is_an_error_text_and_keeps_its_state(sandbox: Sandbox) -> None:
    await sandbox.python("kept = 5", LIMITS)
    result = await sandbox.python("import sys; sys.exit(3)", LIMITS)
    assert result.error == "SystemExit: 3 (line 1)"
    assert (await sandbox.python("kept", LIMITS)).stdout == b"5\n"


async def test_an_interpreter_that_kills_itself_is_replaced(sandbox: Sandbox) -> None:
    result = await sandbox.python("import os; os._exit(0)", LIMITS)
    assert result.outcome is Outcome.OK
    assert result.interpreter_lost
    assert (await sandbox.python("1", LIMITS)).stdout == b"1\n"


async def test_code_that_forks_answers_once(sandbox: Sandbox) -> None:
    result = await sandbox.python("import os\npid = os.fork()\n1", LIMITS)
    assert result.error is None
    assert b"2\n" in (await sandbox.python("2", LIMITS)).stdout  # the child's own output may come at any time


async def test_lies_on_the_interpreters_channel_change_no_outcome(sandbox: Sandbox) -> None:
    code = "import os\nos.write(3, b'\\xff' * 64)\nos.write(3, b'{')"
    result = await sandbox.python(code, LIMITS)
    assert result.outcome is Outcome.OK
    assert result.interpreter_lost
    assert (await sandbox.python("1", LIMITS)).stdout == b"1\n"


async def test_code_in_a_sandbox_that_is_destroyed_under_it_is_told_so(sandbox: Sandbox) -> None:
    await sandbox.python("1", LIMITS)
    running = asyncio.create_task(sandbox.python("print('a', flush=True)\nwhile True: pass", LIMITS))
    await asyncio.sleep(0)
    await sandbox.destroy()
    assert (await running).outcome is Outcome.SANDBOX_DIED


async def test_a_command_in_a_sandbox_that_is_destroyed_under_it_is_told_so(sandbox: Sandbox) -> None:
    running = asyncio.create_task(sandbox.execute(Command(("sleep", "30")), LIMITS))
    await asyncio.sleep(0)
    await sandbox.destroy()
    assert (await running).outcome is Outcome.SANDBOX_DIED


async def test_what_was_printed_before_a_limit_is_kept(sandbox: Sandbox) -> None:
    result = await sandbox.python(
        "print('so far', flush=True)\nwhile True: pass", replace(LIMITS, wall_s=1.0)
    )
    assert result.outcome is Outcome.TIMED_OUT
    assert result.stdout in {b"so far\n", b""}  # a loaded machine may not have come that far


async def test_threads_and_subprocesses_of_the_interpreter_print_to_the_same_place(sandbox: Sandbox) -> None:
    code = "import subprocess; r = subprocess.run(['echo', 'sub']); print('main')"
    assert (await sandbox.python(code, LIMITS)).stdout == b"sub\nmain\n"


async def test_a_large_program_text_passes(sandbox: Sandbox) -> None:
    result = await sandbox.python("x = '" + "y" * 2_000_000 + "'\nlen(x)", LIMITS)
    assert result.stdout == b"2000000\n"


async def test_a_link_to_the_outside_is_not_followed(backend: Backend, sandbox: Sandbox) -> None:
    await sandbox.execute(shell("ln -s /etc/passwd link; ln -s /etc dir; mkfifo pipe"), LIMITS)
    # A kernel of its own keeps a pipe to itself: there is none on the host to be met.
    seen = ["pipe"] if backend.capabilities.isolation <= Isolation.NAMESPACE else []
    for path in ("link", "dir/passwd", *seen):
        with pytest.raises(Rejected):
            await sandbox.get_file(path, 100)
        with pytest.raises(Rejected):
            await sandbox.put_file(path, b"x")


async def test_evidence_has_wall_cpu_and_memory(sandbox: Sandbox, enforces: Enforces) -> None:
    enforces("cpu_s")
    result = await sandbox.python("sum(range(3_000_000))", LIMITS)
    assert result.evidence.wall_s >= result.evidence.cpu_s * 0.5 > 0
    assert result.evidence.peak_memory_bytes > 100_000


async def test_a_thousand_commands_leave_no_zombie(sandbox: Sandbox, isolated: None) -> None:
    script = "i=0; while [ $i -lt 250 ]; do (true &) ; (setsid true &); i=$((i+1)); done"
    for _ in range(2):
        await sandbox.execute(shell(script), LIMITS)
    count = "import os\nprint(sum(b') Z ' in open(f'/proc/{p}/stat','rb').read() for p in os.listdir('/proc') if p.isdigit()))"

    async def reaped() -> bool:
        return (await sandbox.execute(Command(("python3", "-S", "-c", count)), LIMITS)).stdout == b"0\n"

    await eventually(reaped)


async def test_a_flood_of_output_does_not_grow_the_host(sandbox: Sandbox, backend: Backend) -> None:
    if not backend.capabilities.streaming:
        pytest.skip("this backend declares no streaming")
    size = 0

    async def sink(_: Stream, data: bytes) -> None:
        nonlocal size
        size += len(data)

    flood = Command(("head", "-c", str(1 << 28), "/dev/zero"))
    await sandbox.execute(Command(("head", "-c", "1000000", "/dev/zero")), LIMITS, sink)
    size, before = 0, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = await sandbox.execute(flood, replace(LIMITS, wall_s=300), sink)
    assert (size, result.truncated, result.exit_code) == (1 << 28, True, 0)
    assert len(result.stdout) < LIMITS.output_bytes + 64
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 65_536  # KiB


async def test_an_interpreter_that_died_is_told_though_its_children_hold_its_channel(
    sandbox: Sandbox,
) -> None:
    code = "import os, time\nif os.fork() == 0:\n    time.sleep(600)\nos.kill(os.getpid(), 9)"
    result = await sandbox.python(code, replace(LIMITS, wall_s=60.0))
    assert result.interpreter_lost
    assert result.outcome is Outcome.OK
    assert (await sandbox.python("1 + 1", LIMITS)).stdout == b"2\n"
