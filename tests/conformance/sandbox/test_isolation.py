"""What a hostile program finds: nothing of the host, and no way to it."""

import os
import socket
from pathlib import Path

import pytest
from tests.conformance.sandbox.conftest import ALL, LIMITS

from temper.sandbox.engine.base import Command, Sandbox

BACKENDS = tuple(name for name in ALL if name != "kubernetes")  # the walls of a double prove nothing
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("isolated")]


async def run(sandbox: Sandbox, line: str) -> str:
    result = await sandbox.execute(Command(("/bin/sh", "-c", line)), LIMITS)
    return (result.stdout + result.stderr).decode(errors="replace")


async def code(sandbox: Sandbox, text: str) -> str:
    result = await sandbox.python(text, LIMITS)
    return result.stdout.decode() + (result.error or "")


async def test_it_sees_its_own_processes_only(sandbox: Sandbox) -> None:
    pids = (await run(sandbox, "echo /proc/[0-9]*")).split()
    assert len(pids) < 6
    assert str(os.getpid()) not in {pid.removeprefix("/proc/") for pid in pids} or os.getpid() < 10


@pytest.mark.usefixtures("shared_kernel")
async def test_it_has_no_privilege_and_can_gain_none(sandbox: Sandbox) -> None:
    status = await run(sandbox, "cat /proc/self/status")
    for line in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert f"{line}:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status
    assert "Seccomp:\t2" in status
    assert "uid=0" not in await run(sandbox, "id; su -c id root 2>/dev/null; sudo id 2>/dev/null")


@pytest.mark.parametrize(
    "path", ["/etc/shadow", "/root/.bashrc", "/home", "/var/log", "/etc/hostname", "/boot", "/sys/kernel"]
)
async def test_the_hosts_own_files_are_not_there(sandbox: Sandbox, path: str) -> None:
    said = await run(sandbox, f"cat {path}; cd {path} && echo *")
    assert "No such file" in said or not host_lines(path) & set(said.split())  # an engine puts its own there


def host_lines(path: str) -> set[str]:
    """What the host has at a path: entries of a directory, lines of a file."""
    place = Path(path)
    return {each.name for each in place.iterdir()} if place.is_dir() else set(place.read_text().splitlines())


async def test_the_services_files_are_not_there(sandbox: Sandbox, tmp_path: str) -> None:
    assert "No such file" in await run(sandbox, f"cat {tmp_path}")
    assert "No such file" in await run(sandbox, f"cat {Path(__file__).parent}")


@pytest.mark.parametrize(
    "target", ["/usr/bin/x", "/etc/x", "/dev/x", "/x", "/proc/sys/kernel/hostname", "/var/x"]
)
async def test_nothing_but_its_own_trees_can_be_written(sandbox: Sandbox, target: str) -> None:
    assert "ok" not in await run(sandbox, f"echo evil > {target} && echo ok")


async def test_no_secret_of_the_service_is_in_its_environment_or_memory(
    sandbox: Sandbox, monkeypatch
) -> None:
    names = {line.partition("=")[0] for line in (await run(sandbox, "env")).splitlines()}
    assert names <= {"PATH", "HOME", "LANG", "TMPDIR", "PYTHONHASHSEED", "PWD", "SHLVL", "_", "OLDPWD"}
    assert (
        await code(
            sandbox, "import os; sorted(set(os.environ) - {'PATH','HOME','LANG','TMPDIR','PYTHONHASHSEED'})"
        )
        == "[]\n"
    )


async def test_there_is_no_network_and_no_name_service(sandbox: Sandbox) -> None:
    said = await code(sandbox, "import socket\nsocket.create_connection(('1.1.1.1', 53), 5)")
    assert "unreachable" in said or "No route to host" in said
    assert "gaierror" in await code(sandbox, "socket.getaddrinfo('example.com', 80)")
    assert (await run(sandbox, "cat /proc/net/dev | tail -n +3 | cut -d: -f1 | tr -d ' '")).split() == ["lo"]


async def test_the_hosts_loopback_is_not_its_loopback(sandbox: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        said = await code(sandbox, f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 5)")
    assert "ConnectionRefusedError" in said


async def test_the_hypervisor_cannot_be_called(sandbox: Sandbox) -> None:
    said = await code(sandbox, "import socket\nsocket.socket(40, socket.SOCK_STREAM)")
    assert "Address family not supported" in said


async def test_its_own_loopback_works(sandbox: Sandbox) -> None:
    text = "import socket\ns = socket.create_server(('127.0.0.1', 0))\nc = socket.create_connection(s.getsockname(), 5)\nc is not None"
    assert await code(sandbox, text) == "True\n"


@pytest.mark.usefixtures("shared_kernel")
async def test_what_a_tenant_leaves_in_the_network_is_not_met_by_the_next(sandbox: Sandbox) -> None:
    text = (
        "import socket\ns = socket.create_server(('127.0.0.1', 4444))\n"
        "c = socket.create_connection(('127.0.0.1', 4444), 5)\na, _ = s.accept()\nc.close(); a.recv(1); a.close()"
    )
    assert await code(sandbox, text) == ""  # the client's side is in TIME_WAIT now
    await sandbox.reset()
    said = await run(sandbox, "cat /proc/net/sockstat")
    assert "tw 0" in said


@pytest.mark.usefixtures("shared_kernel")
@pytest.mark.parametrize(
    "call",
    [
        "libc.unshare(0x10000000)",  # a user namespace would hand back capabilities
        "libc.mount(b'none', b'/tmp', b'tmpfs', 0, None)",
        "libc.ptrace(16, 1, 0, 0)",
        "libc.syscall(246, 0, 0, 0, 0, 0)",  # kexec_load
        "libc.syscall(425, 8, 0)",  # io_uring_setup
        "libc.syscall(321, 0, 0, 0)",  # bpf
        "libc.syscall(56, 0x10000011, 0, 0, 0, 0)",  # clone(CLONE_NEWUSER)
    ],
)
async def test_dangerous_calls_are_refused(sandbox: Sandbox, call: str) -> None:
    if os.uname().machine != "x86_64":
        pytest.skip("the numbers are those of x86_64")
    text = f"import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n({call}, ctypes.get_errno())"
    assert await code(sandbox, text) == "(-1, 1)\n"


@pytest.mark.usefixtures("shared_kernel")
async def test_clone3_says_that_it_does_not_exist(sandbox: Sandbox) -> None:
    text = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n(libc.syscall(435, 0, 0), ctypes.get_errno())"
    assert await code(sandbox, text) == "(-1, 38)\n"


async def test_process_one_cannot_be_killed_read_or_traced(sandbox: Sandbox) -> None:
    await run(sandbox, "kill -9 1; kill -STOP 1; kill -INT 1; kill -TERM 1")
    assert "Permission denied" in await run(sandbox, "cat /proc/1/environ; ls -l /proc/1/fd; cat /proc/1/mem")
    assert (await run(sandbox, "echo alive")) == "alive\n"


async def test_killing_everything_from_inside_leaves_a_working_sandbox(sandbox: Sandbox) -> None:
    await sandbox.python("1", LIMITS)
    await run(sandbox, "kill -9 -1")
    assert (await run(sandbox, "echo alive")) == "alive\n"
    first = await sandbox.python("2", LIMITS)
    assert first.interpreter_lost or first.stdout == b"2\n"
    assert (await sandbox.python("3", LIMITS)).stdout == b"3\n"


async def test_the_hostname_is_not_the_hosts(sandbox: Sandbox) -> None:
    assert await run(sandbox, "uname -n") == "sandbox\n"


async def test_a_compiler_and_python_run_within_the_default_limits(sandbox: Sandbox) -> None:
    assert await run(sandbox, "python3 -c 'print(1 + 1)'") == "2\n"
    await sandbox.put_file("/work/a.c", b'#include <stdio.h>\nint main(void) { puts("c"); return 0; }\n')
    said = await run(sandbox, "command -v gcc > /dev/null || { echo c; exit; }; gcc -o a a.c && ./a")
    assert said == "c\n"
