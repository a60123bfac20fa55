# ruff: noqa: ASYNC240 - small reads of /proc and of one program block nobody here
"""Escapes through the kernel's own doors: system calls, privileges, namespaces, control groups, devices, /proc, clocks.

Each attack runs inside and must come to nothing. Those that leave a trace on the host are judged there.
"""

import hashlib
import os
import socket
import time
from pathlib import Path

import pytest
from tests.conformance.sandbox.attacks import code, said, shell
from tests.conformance.sandbox.conftest import LIMITS

from temper.sandbox.engine.base import Backend, Command, Isolation, Sandbox
from temper.sandbox.engine.launcher import base_python

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("isolated")]

REFUSED = {"EPERM", "EACCES", "ENOSYS"}
X86_64 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers are those of x86_64")
CALLS = {
    "mount": "165, b'none', b'/tmp', b'tmpfs', 0, 0",
    "umount2": "166, b'/work', 2",
    "pivot_root": "155, b'/work', b'/work'",
    "chroot": "161, b'/work'",
    "open_tree": "428, -100, b'/', 1",
    "open_tree_attr": "467, -100, b'/', 1, 0, 0",
    "move_mount": "429, -100, b'/work', -100, b'/tmp', 0",
    "fsopen": "430, b'tmpfs', 0",
    "fsmount": "432, -1, 0, 0",
    "mount_setattr": "442, -100, b'/', 0, 0, 0",
    "unshare user": "272, 0x10000000",
    "unshare mount": "272, 0x20000",
    "unshare network": "272, 0x40000000",
    "unshare time": "272, 0x80",
    "setns": "308, 0, 0",
    "clone into a user namespace": "56, 0x10000011, 0, 0, 0, 0",
    "clone3": "435, 0, 0",
    "ptrace a parent": "101, 16, 1, 0, 0",
    "ptrace me": "101, 0, 0, 0, 0",
    "process_vm_readv": "310, 1, 0, 0, 0, 0, 0",
    "process_vm_writev": "311, 1, 0, 0, 0, 0, 0",
    "kcmp": "312, 1, 1, 0, 0, 0",
    "pidfd_getfd": "438, 0, 0, 0",
    "add_key": "248, b'user', b'k', b'v', 1, -3",
    "request_key": "249, b'user', b'k', 0, -3",
    "keyctl": "250, 0, -5, 0, 0, 0",
    "bpf": "321, 0, 0, 0",
    "perf_event_open": "298, 0, 0, -1, -1, 0",
    "userfaultfd": "323, 0",
    "io_uring_setup": "425, 8, 0",
    "io_uring_enter": "426, 0, 0, 0, 0, 0, 0",
    "io_uring_register": "427, 0, 0, 0, 0",
    "init_module": "175, 0, 0, b''",
    "finit_module": "313, 0, b'', 0",
    "delete_module": "176, b'x', 0",
    "kexec_load": "246, 0, 0, 0, 0",
    "kexec_file_load": "320, 0, 0, 0, b'', 0",
    "reboot": "169, 0xfee1dead, 672274793, 0, 0",
    "swapon": "167, b'/work/x', 0",
    "acct": "163, b'/work/x'",
    "quotactl": "179, 0, b'', 0, 0",
    "syslog": "103, 3, 0, 0",
    "iopl": "172, 3",
    "ioperm": "173, 0, 1, 1",
    "sethostname": "170, b'x', 1",
    "clock_settime": "227, 0, b'\\0' * 16",
    "settimeofday": "164, b'\\0' * 16, 0",
    "adjtimex": "159, b'\\0' * 256",
    "name_to_handle_at": "303, -100, b'/', b'\\0' * 256, b'\\0' * 8, 0",
    "open_by_handle_at": "304, -100, b'\\0' * 256, 0",
    "fanotify_init": "300, 0, 0",
    "lookup_dcookie": "212, 0, 0, 0",
    "move_pages": "279, 0, 0, 0, 0, 0, 0",
    "setuid root": "105, 0",
    "setgid root": "106, 0",
    "setgroups": "116, 0, b''",
    "mknod of the first disk": "133, b'/work/disk', 0o60666, 0x800",
    "a negative nice value": "141, 0, 0, -20",
    "a real-time schedule": "144, 0, 1, b'\\x01\\0\\0\\0'",
    "a real-time input class": "251, 1, 0, 1 << 13",
}


@X86_64
@pytest.mark.usefixtures("filtered")
@pytest.mark.parametrize("name", list(CALLS))
async def test_a_privileged_call_is_refused(sandbox: Sandbox, name: str) -> None:
    assert await code(sandbox, f"print(call({CALLS[name]}))") in REFUSED


@X86_64
async def test_the_numbers_of_the_x32_interface_lead_nowhere(sandbox: Sandbox) -> None:
    assert await code(sandbox, "print(call(0x40000000 | 39), call(0x40000000 | 165))") in {
        "EPERM EPERM",
        "ENOSYS ENOSYS",
        "the interpreter was killed",  # an engine's filter kills who calls by another interface
    }


@X86_64
@pytest.mark.usefixtures("filtered")
async def test_the_32_bit_interface_kills_who_enters_it(sandbox: Sandbox) -> None:
    """`mov eax, 20; int 0x80; ret`: the filter's list holds 64-bit numbers, so another table would walk around it."""
    text = (
        "import ctypes, mmap\nroom = mmap.mmap(-1, 4096, prot=7)\n"
        "room.write(bytes.fromhex('b814000000cd80c3'))\n"
        "enter = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(room)))\n"
        "print('entered', enter())"
    )
    result = await sandbox.execute(Command(("python3", "-c", text)), LIMITS)
    assert b"entered" not in result.stdout
    assert result.signal in {31, 11}  # SIGSYS; SIGSEGV where the kernel has no such interface


async def test_a_setuid_program_gives_nothing(sandbox: Sandbox) -> None:
    before = await said(sandbox, "id -u")
    assert before != "0"
    line = "cp /usr/bin/id own 2>/dev/null || cp /bin/id own; chmod 6755 own; ./own -u; ./own -g"
    assert await said(sandbox, line) == f"{before}\n{await said(sandbox, 'id -g')}"
    line = "for p in $(find /usr/bin /usr/sbin /usr/lib/openssh /bin /sbin -xdev -perm -4000 2>/dev/null); do $p </dev/null >/dev/null 2>&1; done; id -u"
    assert await said(sandbox, line) == before


@pytest.mark.parametrize(
    "device",
    [
        "mem",
        "kmem",
        "port",
        "kvm",
        "fuse",
        "sda",
        "vda",
        "loop0",
        "net/tun",
        "kmsg",
        "mapper/control",
        "vsock",
    ],
)
async def test_no_device_of_the_machine_is_there(backend: Backend, sandbox: Sandbox, device: str) -> None:
    if device in {"fuse", "net/tun"} and backend.capabilities.isolation > Isolation.NAMESPACE:
        pytest.skip("this backend declares a kernel of its own, and this device is that kernel's")
    assert "No such file" in await said(sandbox, f"head -c 1 /dev/{device}")


async def test_a_device_node_cannot_be_made_or_used(sandbox: Sandbox) -> None:
    text = "import stat\nfor kind in (stat.S_IFBLK, stat.S_IFCHR):\n    print(attempt(lambda: os.mknod('/work/node', kind | 0o666, os.makedev(1, 1))))"
    assert await code(sandbox, text) == "EPERM\nEPERM"


@pytest.mark.parametrize(
    ("family", "kind", "protocol"),
    [
        ("AF_PACKET", "SOCK_RAW", 3),
        ("AF_INET", "SOCK_RAW", 1),
        ("AF_INET6", "SOCK_RAW", 58),
        ("AF_INET", "SOCK_RAW", 255),
        ("40", "SOCK_STREAM", 0),  # AF_VSOCK
        ("38", "SOCK_SEQPACKET", 0),  # AF_ALG
        ("31", "SOCK_RAW", 1),  # AF_BLUETOOTH
        ("15", "SOCK_RAW", 2),  # AF_KEY
        ("44", "SOCK_RAW", 0),  # AF_XDP
        ("29", "SOCK_RAW", 1),  # AF_CAN
    ],
)
async def test_a_socket_that_sees_more_than_its_own_loopback_cannot_be_made(
    backend: Backend, sandbox: Sandbox, family: str, kind: str, protocol: int
) -> None:
    if family == "40" and not backend.capabilities.filtered:
        pytest.skip("this backend declares no filter of our own, and AF_VSOCK needs no privilege")
    name = family if family.isdigit() else f"socket.{family}"
    text = f"import socket\nprint(attempt(lambda: socket.socket({name}, socket.{kind}, {protocol})))"
    assert await code(sandbox, text) in {*REFUSED, "EAFNOSUPPORT", "EPROTONOSUPPORT", "ESOCKTNOSUPPORT"}


async def test_netlink_changes_no_link_and_no_route(sandbox: Sandbox) -> None:
    """RTM_NEWLINK of a dummy device, and RTM_NEWROUTE by way of lo."""
    text = """
import socket, struct
def ask(kind, body):
    s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    s.settimeout(5)
    s.send(struct.pack("=IHHII", 16 + len(body), kind, 0x605, 1, 0) + body)
    return errno.errorcode.get(-struct.unpack_from("=i", s.recv(4096), 16)[0], "allowed")
attribute = lambda kind, value: struct.pack("=HH", 4 + len(value), kind) + value + b"\\0" * (-len(value) % 4)
print(ask(16, struct.pack("=BBHiII", 0, 0, 0, 0, 1, 1) + attribute(18, attribute(1, b"dummy"))))
print(ask(24, struct.pack("=BBBBBBBBI", 2, 0, 0, 0, 254, 3, 0, 1, 0) + attribute(4, struct.pack("=i", 1))))
"""
    assert await code(sandbox, text) in {"EPERM\nEPERM", "EACCES\nEACCES"}


async def test_an_abstract_socket_of_the_host_is_not_reached(sandbox: Sandbox) -> None:
    name = f"\0temper-escape-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        text = f"import socket\nprint(attempt(lambda: socket.socket(socket.AF_UNIX).connect({name!r})))"
        assert await code(sandbox, text) == "ECONNREFUSED"


@pytest.mark.parametrize(
    "path",
    [
        "/proc/sysrq-trigger",
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/modprobe",
        "/proc/sys/vm/drop_caches",
        "/proc/sys/net/ipv4/ip_forward",
        "/proc/sys/net/ipv4/ping_group_range",
        "/proc/sys/kernel/ns_last_pid",
        "/proc/sys/user/max_user_namespaces",
        "/proc/sys/fs/binfmt_misc/register",
        "/proc/self/uid_map",
        "/proc/self/gid_map",
        "/proc/self/setgroups",
        "/proc/self/timens_offsets",
        "/proc/self/loginuid",
        "/proc/1/oom_score_adj",
        "/proc/1/mem",
        "/proc/1/comm",
        "/proc/irq/0/smp_affinity",
        "/proc/kcore",
        "/sys/fs/cgroup/release_agent",
        "/sys/kernel/uevent_helper",
    ],
)
async def test_a_switch_of_the_kernel_cannot_be_turned(sandbox: Sandbox, path: str) -> None:
    if path.startswith("/proc/1/") and await said(sandbox, "[ -O /proc/1 ] && echo own") == "own":
        return  # the first process is the agent's user: what it turns there, it turns for itself
    before = Path(path).read_text() if path.startswith("/proc/sys/kernel/core") else ""
    text = f"print(attempt(lambda: os.write(os.open({path!r}, os.O_WRONLY), b'0')))"
    assert "allowed" not in await code(sandbox, text)
    if before:
        assert Path(path).read_text() == before


@pytest.mark.parametrize("path", ["/proc/kcore", "/proc/kmsg", "/proc/vmallocinfo", "/proc/pagetypeinfo"])
async def test_the_kernels_memory_is_not_readable(sandbox: Sandbox, path: str) -> None:
    assert "allowed" not in await code(sandbox, f"print(attempt(lambda: open({path!r}, 'rb').read(1)))")


async def test_no_kernel_address_is_told(sandbox: Sandbox) -> None:
    found = await said(sandbox, "grep -v '^0000000000000000' /proc/kallsyms | head -n 3")
    assert found == "" or "No such file" in found or "Permission denied" in found


async def test_no_key_of_the_host_is_listed(sandbox: Sandbox) -> None:
    uid = await said(sandbox, "id -u")
    lines = (await said(sandbox, "cat /proc/keys 2>/dev/null")).splitlines()
    assert all(line.split()[5] == uid for line in lines)


@pytest.mark.parametrize("link", ["root", "cwd", "exe", "fd", "ns/mnt", "ns/net", "map_files"])
async def test_process_one_is_no_way_out(backend: Backend, sandbox: Sandbox, link: str) -> None:
    if link in {"fd", "ns/net"} and backend.capabilities.isolation > Isolation.NAMESPACE:
        pytest.skip("this backend declares a kernel of its own, which shows such links and follows none")
    """Refused; or, where the first process has the agent's user, it is where the agent is, and so are its links."""
    text = f"print(attempt(lambda: os.listdir('/proc/1/{link}')), attempt(lambda: os.readlink('/proc/1/{link}')))"
    if "allowed" not in await code(sandbox, text):
        return
    assert await said(sandbox, "[ -O /proc/1 ] && echo own") == "own"
    text = "print([os.readlink(f'/proc/1/ns/{kind}') == os.readlink(f'/proc/self/ns/{kind}') for kind in ('mnt', 'net', 'pid', 'ipc')], os.stat('/proc/1/root').st_ino == os.stat('/').st_ino)"
    assert await code(sandbox, text) == "[True, True, True, True] True"


async def test_walking_up_ends_at_its_own_root(sandbox: Sandbox) -> None:
    text = "print(os.stat('/' + '../' * 40).st_ino == os.stat('/').st_ino, sorted(os.listdir('/proc/self/root/../..')) == sorted(os.listdir('/')))"
    assert await code(sandbox, text) == "True True"


async def test_the_running_interpreter_cannot_be_overwritten(sandbox: Sandbox) -> None:
    """The way of CVE-2019-5736: /proc/self/exe may name the file by a mount of the host that is not read-only."""
    program = Path(base_python().executable)
    before = hashlib.sha256(program.read_bytes()).digest()
    text = """
import subprocess
print(attempt(lambda: os.write(os.open('/proc/self/exe', os.O_WRONLY), b'#!')))
held = os.open('/proc/self/exe', os.O_PATH)
print(attempt(lambda: os.write(os.open(f'/proc/self/fd/{held}', os.O_WRONLY), b'#!')))
other = subprocess.Popen(['sleep', '30'])
print(attempt(lambda: os.write(os.open(f'/proc/{other.pid}/exe', os.O_WRONLY), b'#!')))
other.kill(); other.wait()
print(attempt(lambda: os.chmod('/proc/self/exe', 0o777)), attempt(lambda: os.truncate('/proc/self/exe', 0)))
"""
    assert "allowed" not in await code(sandbox, text)
    assert hashlib.sha256(program.read_bytes()).digest() == before


async def test_no_control_group_can_be_seen_or_changed(sandbox: Sandbox) -> None:
    names = "\\( -name cgroup.procs -o -name release_agent -o -name notify_on_release \\)"
    line = f"find / -xdev {names} 2>/dev/null; find /sys {names} 2>/dev/null"  # a mount that is covered leads nowhere
    assert await said(sandbox, line) == ""
    assert (
        await said(
            sandbox,
            "mkdir -p g && mount -t cgroup -o memory none g 2>/dev/null && echo in; find g -mindepth 1 2>/dev/null",
        )
        == ""
    )
    paths = {line.rpartition(":")[2] for line in (await said(sandbox, "cat /proc/self/cgroup")).splitlines()}
    assert paths <= {"/"}


async def test_a_limit_cannot_be_raised(sandbox: Sandbox) -> None:
    text = """
import resource
for name in ("NOFILE", "FSIZE", "CORE"):
    which = getattr(resource, "RLIMIT_" + name)
    try:
        resource.setrlimit(which, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        print("allowed", name)
    except (ValueError, OSError):
        pass
"""
    assert await code(sandbox, text) == ""


@pytest.mark.usefixtures("shared_kernel")
async def test_the_killer_of_memory_hogs_cannot_be_sent_to_process_one(sandbox: Sandbox) -> None:
    assert "allowed" not in await code(
        sandbox, "print(attempt(lambda: os.write(os.open('/proc/self/oom_score_adj', os.O_WRONLY), b'-1')))"
    )


async def test_the_clock_is_the_hosts_and_stays_so(sandbox: Sandbox) -> None:
    await shell(sandbox, "date -s '2001-01-01'; date 010100002001")
    inside = float(await code(sandbox, "import time; print(time.time())"))
    assert abs(inside - time.time()) < 60


async def test_a_crash_leaves_no_core(sandbox: Sandbox) -> None:
    await shell(sandbox, "ulimit -c unlimited; sh -c 'kill -SEGV $$'")
    assert await said(sandbox, "find /work /tmp | grep -i core") == ""


async def test_terminals_of_the_host_are_out_of_reach(sandbox: Sandbox) -> None:
    """TIOCSTI would type into the terminal that the service was started from."""
    assert "allowed" not in await code(sandbox, "print(attempt(lambda: os.open('/dev/tty', os.O_RDWR)))")
    text = "import fcntl\nfor fd in range(4):\n    print(attempt(lambda: fcntl.ioctl(fd, 0x5412, b'x')))"
    assert "allowed" not in await code(sandbox, text)
