"""The filter, run by a small interpreter of classic BPF: what the kernel would answer, without a kernel."""

import errno
import struct

import pytest

from temper.sandbox.engine.guest import seccomp

ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
X86, ARM = 0xC000003E, 0xC00000B7


def decide(program: bytes, number: int, arch: int, *arguments: int) -> int:
    data = struct.pack("=iIQ6Q", number, arch, 0, *(*arguments, 0, 0, 0, 0, 0, 0)[:6])
    lines = [struct.unpack_from("=HBBI", program, offset) for offset in range(0, len(program), 8)]
    counter, accumulator = 0, 0
    while True:
        code, if_true, if_false, constant = lines[counter]
        counter += 1
        match code:
            case 0x20:
                (accumulator,) = struct.unpack_from("=I", data, constant)
            case 0x05:
                counter += constant
            case 0x06:
                return constant
            case _:
                tests = {
                    0x15: accumulator == constant,
                    0x35: accumulator >= constant,
                    0x45: bool(accumulator & constant),
                }
                counter += if_true if tests[code] else if_false


@pytest.mark.parametrize(("machine", "arch"), [("x86_64", X86), ("aarch64", ARM)])
def test_exactly_the_listed_calls_are_refused(machine: str, arch: int) -> None:
    program = seccomp.program(machine)
    refused = {number for number in range(600) if decide(program, number, arch, 1) == ERRNO | errno.EPERM}
    assert refused == set(seccomp._DENIED[machine])


@pytest.mark.parametrize(("machine", "arch"), [("x86_64", X86), ("aarch64", ARM)])
def test_clone_may_make_threads_and_processes_but_no_namespaces(machine: str, arch: int) -> None:
    program, clone = seccomp.program(machine), seccomp._CLONE[machine]
    assert decide(program, clone, arch, 0x3D0F00) == ALLOW  # what a thread asks for
    assert decide(program, clone, arch, 17) == ALLOW
    for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert decide(program, clone, arch, flag | 17) == ERRNO | errno.EPERM
    assert decide(program, 435, arch) == ERRNO | errno.ENOSYS


@pytest.mark.parametrize(("machine", "arch"), [("x86_64", X86), ("aarch64", ARM)])
def test_only_sockets_that_know_network_namespaces_can_be_made(machine: str, arch: int) -> None:
    program, socket = seccomp.program(machine), seccomp._SOCKET[machine]
    allowed = {family for family in range(64) if decide(program, socket, arch, family) == ALLOW}
    assert allowed == {1, 2, 10, 16}
    assert (
        decide(program, socket, arch, 40) == ERRNO | errno.EAFNOSUPPORT
    )  # AF_VSOCK: straight to the hypervisor


def test_another_architecture_is_killed_and_x32_is_refused() -> None:
    program = seccomp.program("x86_64")
    assert decide(program, 0, ARM) == KILL
    assert decide(program, 0x40000000 | 165, X86) == ERRNO | errno.EPERM


def test_an_unknown_machine_has_no_filter() -> None:
    with pytest.raises(KeyError):
        seccomp.program("vax")
