# ruff: noqa: ASYNC240 - small files and reads of /proc block nobody here
"""Failures that users of other sandboxes have reported, each as a test named by its source, on every backend.

A name is `test_<project>_<number>_<rule>`. `SOURCES` is the list; a test at the end holds that none is missing.
"""

import asyncio
import contextlib
import io
import os
import re
import resource
import subprocess
import tarfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from tests.conformance.sandbox.attacks import code, said, shell, within
from tests.conformance.sandbox.conftest import LIMITS

from temper.runtime.errors import Rejected, Unavailable
from temper.sandbox import tools
from temper.sandbox.engine import cgroups, identity
from temper.sandbox.engine.base import Backend, Command, Isolation, Outcome, Sandbox, SessionSpec, StartCost
from temper.sandbox.engine.process import ProcessBackend

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("programs")]
Enforces = Callable[[str], None]
Needs = Callable[[str], None]

SOURCES: Final = [
    "langfuse#15955",
    "agent-os#3334",
    "deer-flow#3864",
    "prime#305",
    "evalscope#1469",
    "letta-evals#262",
    "software-agent-sdk#3042",
    "domjudge-packaging#13",
    "isolate#139",
    "inspect_ai#781",
    "inspect_ai#3534",
    "agent-governance-toolkit#2303",
    "SandboxFusion#62",
    "inspect_k8s_sandbox#206",
    "rllm#895",
    "tolokaforge#1098",
    "Decepticon#665",
    "benchflow#411",
    "OpenShell#1353",
    "prime#102",
    "agent-kernel#364",
    "Conch#140",
    "marin#3769",
    "microsandbox#1007",
    "trajectoryRL#203",
    "Orva#74",
    "sandbox-runtime#88",
    "microsandbox#675",
    "OpenShell#1169",
    "infra#89",
    "microsandbox#855",
    "opencomputer#530",
    "mitos#5",
    "AgentENV#33",
    "forkd#2",
    "smolagents#2104",
    "codeArbiter#173",
    "OpenSandbox#743",
    "leoflow#728",
    "inspect_ai#4957",
]


@pytest.fixture
def needs(backend: Backend) -> Needs:
    def require(need: str) -> None:
        if not backend.capabilities.has(need):
            pytest.skip(f"this backend does not declare {need}")

    return require


def own_only(backend: Backend) -> None:
    if backend.capabilities.isolation < Isolation.NAMESPACE:
        pytest.skip("under weak isolation the host's own processes are seen too")


async def names(sandbox: Sandbox) -> list[str]:
    """Names of the agent's processes inside, as the kernel there tells them."""
    return [Path(each.argv[0]).name for each in await sandbox.list_processes() if each.argv]


async def test_langfuse_15955_a_timeout_is_reported_when_the_whole_tree_is_gone(
    backend: Backend, sandbox: Sandbox
) -> None:
    result = await shell(sandbox, "sleep 300 & wait", within(0.05))
    assert result.outcome is Outcome.TIMED_OUT
    own_only(backend)
    assert "sleep" not in await names(sandbox)
    line = "setsid sh -c 'trap \"\" TERM; touch there; sleep 300; sleep 300' & while :; do sleep 1; done"
    result = await shell(sandbox, line, within(1.0))  # one that left the group and does not listen
    assert result.outcome is Outcome.TIMED_OUT
    assert "sleep" not in await names(sandbox)


async def test_agent_os_3334_a_command_ends_when_it_exits_not_when_its_children_do(sandbox: Sandbox) -> None:
    result = await shell(sandbox, "(sleep 600 &) ; exit 0", within(20.0))
    assert (result.outcome, result.exit_code) == (Outcome.OK, 0)


async def test_deer_flow_3864_a_server_in_the_background_lives_and_input_is_at_its_end(
    sandbox: Sandbox,
) -> None:
    text = "import socket, time; s = socket.create_server(('127.0.0.1', 0)); open('port', 'w').write(str(s.getsockname()[1])); time.sleep(600)"
    started = await shell(sandbox, f'python3 -c "{text}" &')
    assert started.outcome is Outcome.OK
    line = "while [ ! -s port ]; do sleep 0.01; done; python3 -c \"import socket; socket.create_connection(('127.0.0.1', int(open('port').read()))); print('lives')\""
    assert await said(sandbox, line) == "lives"
    assert await said(sandbox, "read x; echo $?") == "1"


async def test_prime_305_what_nohup_leaves_does_not_block_the_next_command(sandbox: Sandbox) -> None:
    await shell(sandbox, "nohup sh -c 'sleep 600 &' ")
    result = await shell(sandbox, "echo next", within(20.0))
    assert (result.outcome, result.stdout) == (Outcome.OK, b"next\n")


async def test_evalscope_1469_a_late_process_gets_term_then_kill_and_the_end_is_typed(
    backend: Backend, sandbox: Sandbox
) -> None:
    wall_s = 0.4 if backend.capabilities.start_cost is StartCost.FORK else 3.0  # it must have begun by then
    line = "trap 'echo term >> /tmp/said 2>/dev/null; echo term >> said' TERM; while :; do sleep 0.01; done"
    result = await shell(sandbox, line, replace(LIMITS, wall_s=wall_s, grace_s=1.0))
    assert result.outcome is Outcome.TIMED_OUT
    assert result.exit_code is None
    assert b"term" in (await sandbox.get_file("said", 100))[0]


async def test_letta_evals_262_a_timeout_is_a_type_and_no_number(sandbox: Sandbox) -> None:
    late = await shell(sandbox, "sleep 600", within(0.05))
    odd = await shell(sandbox, "exit 255")
    assert (late.outcome, late.exit_code) == (Outcome.TIMED_OUT, None)
    assert (odd.outcome, odd.exit_code) == (Outcome.OK, 255)


async def test_software_agent_sdk_3042_a_thousand_orphans_leave_no_zombie(
    backend: Backend, sandbox: Sandbox
) -> None:
    own_only(backend)
    line = "exec 2>/dev/null; i=0; while [ $i -lt 1000 ]; do (true &); i=$((i + 1)); done"
    assert (await shell(sandbox, line)).outcome in {Outcome.OK, Outcome.PIDS_EXCEEDED}
    count = "cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z'"
    async with asyncio.timeout(60):
        while await said(sandbox, count) != "0":
            pass


async def test_domjudge_packaging_13_a_fork_bomb_in_c_gets_a_clean_verdict(
    sandbox: Sandbox, enforces: Enforces
) -> None:
    enforces("pids")
    await sandbox.put_file("bomb.c", b"#include <unistd.h>\nint main(void) { while (1) fork(); }\n")
    built = await shell(sandbox, "command -v gcc >/dev/null && gcc -o bomb bomb.c")
    program = Command(("./bomb",)) if built.exit_code == 0 else None
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    limits = within(1.0)
    result = await (sandbox.execute(program, limits) if program else sandbox.python(bomb, limits))
    assert result.outcome in {Outcome.PIDS_EXCEEDED, Outcome.TIMED_OUT}
    assert result.evidence.refused_forks > 0
    assert await said(sandbox, "echo on") == "on"


async def test_isolate_139_a_compiler_runs_by_default_and_a_limit_of_processes_is_named(
    backend: Backend, sandbox: Sandbox, enforces: Enforces
) -> None:
    enforces("pids")
    line = "command -v gcc >/dev/null || { echo c; exit; }; echo 'int main(void){return 0;}' > a.c && gcc -o a a.c && ./a && echo c"
    assert await said(sandbox, line) == "c"
    narrow = await backend.create("narrow", replace(LIMITS, pids=2))
    try:
        result = await narrow.execute(Command(("/bin/sh", "-c", "true | true; (sleep 0)")), LIMITS)
        assert result.outcome is Outcome.PIDS_EXCEEDED
    finally:
        await narrow.destroy()


async def test_inspect_ai_781_hundreds_of_megabytes_are_capped_while_they_come(sandbox: Sandbox) -> None:
    result = await shell(sandbox, "head -c 300000000 /dev/zero")
    assert result.truncated
    assert result.outcome is Outcome.OUTPUT_TRUNCATED
    assert len(result.stdout) < LIMITS.output_bytes + 64


async def test_inspect_ai_3534_endless_standard_error_is_capped_too(sandbox: Sandbox) -> None:
    result = await shell(sandbox, "yes error >&2")
    assert result.truncated
    assert len(result.stderr) < LIMITS.output_bytes + 64


async def test_agent_governance_toolkit_2303_the_hosts_memory_stays_flat(sandbox: Sandbox) -> None:
    await shell(sandbox, "head -c 20000000 /dev/zero")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(4):
        await shell(sandbox, "yes 0123456789abcdef")
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 32 << 10  # KiB, over some hundreds of MB that were written


async def test_sandbox_fusion_62_long_output_within_the_cap_is_whole_and_finished(sandbox: Sandbox) -> None:
    result = await shell(
        sandbox, "head -c 400000 /dev/zero | tr '\\0' x; exit 3", replace(LIMITS, output_bytes=1 << 20)
    )
    assert (result.outcome, result.exit_code, len(result.stdout)) == (Outcome.OK, 3, 400000)
    assert not result.truncated


async def test_inspect_k8s_sandbox_206_one_invalid_byte_costs_neither_output_nor_exit_code(
    sandbox: Sandbox,
) -> None:
    result = await shell(sandbox, "printf 'a\\377b'; exit 7")
    assert (result.stdout, result.exit_code) == (b"a\xffb", 7)


async def test_rllm_895_invalid_bytes_become_an_observation(sandbox: Sandbox) -> None:
    result = await tools.run(
        sandbox, tools.SHELL, {"command": "printf 'a\\377\\300b'; printf '\\200' >&2"}, LIMITS
    )
    assert tools.observation(result, LIMITS) == "a\ufffd\ufffdb\n\ufffd"
    assert not tools.is_error(result)


PASTE: Final = r"\033[?2004h$ \033]3008;start=x\033\\ok\033[?2004l"


async def test_tolokaforge_1098_bracketed_paste_is_stripped_in_the_text_and_kept_raw(
    sandbox: Sandbox, needs: Needs
) -> None:
    plain = await shell(sandbox, f"printf '{PASTE}'")
    assert tools.clean(plain.stdout) == "$ ok"
    needs("terminals")
    session = await sandbox.open_session(SessionSpec(("/bin/sh", "-c", f"printf '{PASTE}'"), terminal=True))
    ended = await session.wait()
    assert b"\x1b[?2004h" in ended.stdout
    assert tools.clean(ended.stdout) == "$ ok"


async def test_decepticon_665_operating_system_commands_of_a_terminal_are_stripped(sandbox: Sandbox) -> None:
    result = await shell(sandbox, r"printf '\033]3008;end=y\007done\033]0;t\033\\'")
    assert tools.clean(result.stdout) == "done"
    assert b"3008" in result.stdout


def tree(name: str, target: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = tarfile.SYMTYPE, target
        archive.addfile(member)
    return buffer.getvalue()


async def once(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def test_benchflow_411_a_link_to_a_secret_of_the_host_is_not_followed_on_the_way_up(
    sandbox: Sandbox, needs: Needs, tmp_path: Path
) -> None:
    needs("trees")
    (tmp_path / "secret").write_text("h0st")
    with contextlib.suppress(Rejected):
        await sandbox.put_tree("up", once(tree("link", str(tmp_path / "secret"))))
    with pytest.raises(Rejected):
        await sandbox.get_file("up/link", 100)


async def test_openshell_1353_a_link_out_is_refused_on_the_way_down_and_a_file_comes_as_a_file(
    sandbox: Sandbox,
) -> None:
    await shell(sandbox, "ln -s /etc outside; echo 1 > ./--x")
    with pytest.raises(Rejected):
        await sandbox.get_file("outside/passwd", 100)
    assert await sandbox.get_file("--x", 100) == (b"1\n", False)


async def test_prime_102_a_path_is_never_a_piece_of_shell(sandbox: Sandbox) -> None:
    await sandbox.put_file("keep", b"1")
    path = "a; rm -rf . #$(rm keep)`rm keep`"
    await sandbox.put_file(path, b"2")
    assert await sandbox.get_file(path, 10) == (b"2", False)
    assert await sandbox.get_file("keep", 10) == (b"1", False)


@pytest.mark.parametrize("path", ["../etc/passwd", "a/../../etc/passwd", "/etc/../etc/passwd"])
async def test_agent_kernel_364_an_upload_that_climbs_is_refused(sandbox: Sandbox, path: str) -> None:
    with pytest.raises(Rejected):
        await sandbox.put_file(path, b"x")


async def test_conch_140_a_full_temporary_file_system_is_enospc_and_no_kill(
    sandbox: Sandbox, enforces: Enforces
) -> None:
    enforces("disk_bytes")
    result = await shell(sandbox, "cat /dev/zero > /tmp/fill")
    assert result.outcome is Outcome.DISK_FULL
    assert b"No space left" in result.stderr
    assert result.evidence.oom_kills == 0


async def test_marin_3769_no_choice_of_temporary_directory_escapes_the_quota(
    sandbox: Sandbox, enforces: Enforces
) -> None:
    enforces("disk_bytes")
    for where in ("/var/tmp", "/dev/shm", "/run", "/home", "/root", "/usr/tmp", "/opt", "/mnt"):
        line = f"export TMPDIR={where}; python3 -c \"import tempfile; f = tempfile.NamedTemporaryFile(dir='{where}'); [f.write(bytes(1 << 20)) for _ in range(64)]; f.flush(); print('escaped')\" 2>/dev/null"
        assert "escaped" not in await said(sandbox, line)


async def test_microsandbox_1007_the_hosts_own_directory_stays_small(
    sandbox: Sandbox, enforces: Enforces, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The backends of this suite keep what they keep below pytest's base directory."""
    enforces("disk_bytes")
    base = tmp_path_factory.getbasetemp()
    before = _size(base)
    await shell(sandbox, "cat /dev/zero > /work/a; cat /dev/zero > /tmp/b")
    assert _size(base) - before < 1 << 20


def _size(base: Path) -> int:
    """What lies below on this file system: a sandbox's own trees have a size of their own."""
    own = base.stat().st_dev
    found = [path.lstat() for path in base.rglob("*") if path.is_file()]
    return sum(each.st_size for each in found if each.st_dev == own)


async def test_trajectory_rl_203_no_directory_is_left_and_a_full_host_is_no_outcome(tmp_path: Path) -> None:
    backend = ProcessBackend(slots=2, state_dir=tmp_path)
    await backend.start()
    try:
        for _ in range(10):
            sandbox = await backend.create("a", LIMITS)
            await sandbox.put_file("junk", bytes(10_000))
            await sandbox.destroy()
        assert not list(tmp_path.rglob("junk"))
    finally:
        await backend.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("a small disk can be made by root only")
    command = ["mount", "-t", "tmpfs", "-o", "size=256k,nr_inodes=10", "none", str(tmp_path)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("this host allows no mounts")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


async def test_trajectory_rl_203_a_host_without_room_fails_as_a_host(small_disk: Path) -> None:
    backend = ProcessBackend(slots=20, state_dir=small_disk)
    await backend.start()
    try:
        with pytest.raises(Unavailable, match="space"):
            await asyncio.gather(*(backend.create(str(index), LIMITS) for index in range(20)))
    finally:
        await backend.close()


async def test_orva_74_no_secret_is_in_a_command_line_of_the_host(sandbox: Sandbox) -> None:
    command = Command(("/bin/sh", "-c", "sleep 600 & echo $K"), stdin=b"orv4-in", env={"K": "orv4-env"})
    assert (await sandbox.execute(command, LIMITS)).stdout == b"orv4-env\n"
    found = [path for path in Path("/proc").glob("[0-9]*/cmdline") if b"orv4" in _read(path)]
    assert found == []


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


NO_NAME: Final = """
import socket
for name in ("example.com", "a.very.secret.example.com", "localhost.example"):
    try: print("resolved", socket.getaddrinfo(name, 80))
    except socket.gaierror: print("refused")
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for server in ("127.0.0.1", "127.0.0.53", "169.254.169.254", "8.8.8.8"):
    try:
        s.settimeout(0.2); s.sendto(b"q", (server, 53)); s.recv(10); print("answered")
    except OSError: pass
"""


@pytest.mark.parametrize("source", ["sandbox_runtime_88", "microsandbox_675", "openshell_1169"])
async def test_sandbox_runtime_88_microsandbox_675_openshell_1169_a_name_is_not_even_asked_for(
    sandbox: Sandbox, needs: Needs, source: str
) -> None:
    needs("network:none")
    assert await code(sandbox, NO_NAME) == "refused\nrefused\nrefused"


async def test_infra_89_microsandbox_855_opencomputer_530_the_clock_is_right_after_a_pause(
    sandbox: Sandbox, needs: Needs
) -> None:
    """Time that passes while the sandbox stands still is not missing afterwards."""
    needs("snapshots:files")
    snapshot = await sandbox.snapshot()
    await sandbox.restore(snapshot)
    before = time.time()
    inside = float((await code(sandbox, "import time; print(time.time())")).split()[0])
    assert before <= inside <= time.time()


async def test_mitos_5_agentenv_33_forkd_2_forks_draw_different_numbers(
    backend: Backend, sandbox: Sandbox, needs: Needs
) -> None:
    needs("snapshots:files")
    needs("fork:3")
    draw = "import random, uuid, secrets\nprint(random.random(), uuid.uuid4(), secrets.token_hex(8), os.urandom(8).hex(), random.SystemRandom().random())"
    await sandbox.python("import random, uuid, secrets", LIMITS)
    snapshot = await sandbox.snapshot()
    forks = await backend.fork(snapshot, ["f0", "f1", "f2"], LIMITS)
    try:
        drawn = [(await code(fork.sandbox, draw)).split() for fork in forks if fork.sandbox is not None]
        assert len(drawn) == 3
        flat = [number for each in drawn for number in each]
        assert len(flat) == len(set(flat)) == 15
    finally:
        for fork in forks:
            if fork.sandbox is not None:
                await fork.sandbox.destroy()
        await backend.forget(snapshot)


async def test_smolagents_2104_codearbiter_173_what_nobody_registered_is_reclaimed_too(
    backend: Backend, tmp_path: Path
) -> None:
    """A service that died between making its control groups and writing them down."""
    own_only(backend)
    layout = cgroups.detect()
    if layout.mode is cgroups.Mode.NONE:
        pytest.skip("this host has no control groups to leave behind")
    child = subprocess.Popen(["true"])  # noqa: ASYNC220 - over at once
    namespace = identity.instance().split("-")[0]
    dead = f"{namespace}-{child.pid}-{identity.started(child.pid)}"
    child.wait()
    left = cgroups.Tree(layout, dead)
    left.grow(1)
    assert all(path.exists() for path in left.directories)
    assert cgroups.remove_trees(cgroups.orphans(layout)) >= 1
    assert not any(path.exists() for path in left.directories)


async def test_opensandbox_743_leoflow_728_the_next_tenant_meets_nothing_of_the_last(
    backend: Backend, sandbox: Sandbox
) -> None:
    line = "echo t > ~/.profile; echo t > /tmp/tenant-file 2>/dev/null; mkdir -p .config; export LEFT=1; (setsid sleep 600 &); umask 0; cd /"
    await shell(sandbox, line)
    await sandbox.python("import os; os.environ['LEFT'] = '1'; left = 1", LIMITS)
    await sandbox.reset()
    assert await said(sandbox, "find ~ -mindepth 1; echo $LEFT; umask") == "0022"
    assert "NameError" in await code(sandbox, "left")
    own_only(backend)
    assert await said(sandbox, "find /tmp -mindepth 1") == ""
    assert "sleep" not in await names(sandbox)


async def test_inspect_ai_4957_a_sandbox_that_dies_under_a_command_says_so(
    backend: Backend, sandbox: Sandbox, enforces: Enforces
) -> None:
    doomed = await backend.create("doomed", LIMITS)
    running = asyncio.create_task(doomed.execute(Command(("sleep", "600")), LIMITS))
    await asyncio.sleep(0)
    await doomed.destroy()
    assert (await running).outcome is Outcome.SANDBOX_DIED
    enforces("memory_bytes")
    result = await sandbox.python("x = bytearray(1 << 30)", LIMITS)
    assert result.outcome is Outcome.OOM_KILLED
    assert result.evidence.oom_kills > 0


async def test_every_source_has_its_test() -> None:
    tests = " ".join(name for name in globals() if name.startswith("test_")).lower()
    words = {source: re.sub(r"[^a-z0-9]+", "_", source.lower()) for source in SOURCES}
    split = {"sandboxfusion_62": "sandbox_fusion_62", "trajectoryrl_203": "trajectory_rl_203"}
    missing = [source for source, word in words.items() if split.get(word, word) not in tests]
    assert missing == []
    assert len(SOURCES) == 40
