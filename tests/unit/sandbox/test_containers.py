"""What the container backends share, without a container: marks in output, statuses, paths, manifests, the filter."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import kubernetes_validate
import pytest
from hypothesis import given
from hypothesis import strategies as st

from temper.runtime.errors import Rejected
from temper.runtime.testing import eventually
from temper.sandbox.engine.base import Command, Guarantee, Limits, Outcome
from temper.sandbox.engine.bubblewrap import arguments
from temper.sandbox.engine.command import CommandResult, Stream
from temper.sandbox.engine.container import files, refused
from temper.sandbox.engine.container.interpreter import Interpreter
from temper.sandbox.engine.container.programs import Run
from temper.sandbox.engine.guest import seccomp, wire
from temper.sandbox.engine.gvisor import bundle
from temper.sandbox.engine.kubernetes import resources
from temper.sandbox.engine.kubernetes.resources import Owner, PodSettings
from temper.sandbox.engine.launcher import base_python
from temper.sandbox.engine.watch import ReportedMeter

LIMITS = Limits(output_bytes=1 << 16)


class Scripted:
    """A program whose output is put in by the test."""

    def __init__(self) -> None:
        self.chunks: asyncio.Queue[tuple[Stream, bytes] | None] = asyncio.Queue()
        self.written: list[bytes] = []
        self.ended: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    async def read(self) -> tuple[Stream, bytes] | None:
        return await self.chunks.get()

    async def write(self, data: bytes) -> None:
        self.written.append(data)

    async def finish_input(self) -> None:
        pass

    async def close(self) -> None:
        pass


class OneProgram:
    """A container that starts the one program it is given."""

    def __init__(self, program: Scripted) -> None:
        self.program = program
        self.died: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.meter = ReportedMeter()
        self.files = None
        self.network = -1
        self.python: Sequence[str] = ()
        self.environment: Mapping[str, str] = {}
        self.argv: Sequence[str] = ()

    async def start(self, argv: Sequence[str], env: Mapping[str, str], *, stdin: bool) -> Scripted:
        self.argv = argv
        return self.program

    async def sweep(self, number: int, spared: frozenset[int] = frozenset()) -> None:
        pass

    async def pause(self) -> None:
        pass

    async def resume(self) -> None:
        pass

    async def remove(self) -> None:
        pass


async def asked(program: Scripted) -> tuple[Interpreter, "asyncio.Future[str | None]", bytes]:
    interpreter = Interpreter(program)
    answer = interpreter.ask("1", LIMITS, 0, lambda: None)
    await eventually(lambda: program.written)
    [request] = wire.Decoder().feed(program.written[-1])
    return interpreter, answer, request["mark"].encode()


@pytest.mark.parametrize("size", [1, 3, 7, 1 << 16])
async def test_output_ends_at_the_mark_however_it_is_cut(size: int) -> None:
    program = Scripted()
    interpreter, answer, mark = await asked(program)
    said = b"before\0" + mark[:5] + b"\n" + mark + b"after"
    for start in range(0, len(said), size):
        program.chunks.put_nowait((Stream.STDOUT, said[start : start + size]))
    program.chunks.put_nowait((Stream.STDERR, wire.encode({"id": 1, "error": None})))
    assert await answer == ""
    await interpreter.settle()
    assert interpreter.buffer.value().startswith(b"before\0" + mark[:5] + b"\n")
    assert mark not in interpreter.buffer.value()
    await interpreter.close()


async def test_nonsense_on_the_channel_is_a_lost_interpreter_and_no_crash() -> None:
    program = Scripted()
    interpreter, answer, _ = await asked(program)
    program.chunks.put_nowait((Stream.STDERR, b"\xff" * 64))
    assert await answer is None
    assert interpreter.gone
    await interpreter.close()


async def test_an_answer_to_another_question_is_not_taken() -> None:
    program = Scripted()
    interpreter, answer, _ = await asked(program)
    program.chunks.put_nowait((Stream.STDERR, wire.encode({"id": 99, "error": "lie"})))
    program.chunks.put_nowait((Stream.STDERR, wire.encode({"id": 1, "error": "E: x"})))
    assert await answer == "E: x"
    await interpreter.close()


async def finished(status: int | None, err: bytes = b"", *, marked: bool = False) -> CommandResult:
    program = Scripted()
    container = OneProgram(program)
    run = Run(container, Command(("x; rm -rf /",)), LIMITS, None)
    await run.start()
    mark = container.argv[4].encode() + b":" if marked else b""
    program.chunks.put_nowait((Stream.STDERR, mark + err))
    program.chunks.put_nowait(None)
    program.ended.set_result(status)
    await run.finish()
    assert "rm -rf" not in container.argv[2]
    return run.complete(CommandResult(Outcome.OK))


@pytest.mark.parametrize(
    ("status", "code", "number"), [(0, 0, None), (3, 3, None), (137, None, 9), (None, None, None)]
)
async def test_a_status_over_128_is_a_signal(
    status: int | None, code: int | None, number: int | None
) -> None:
    result = await finished(status)
    assert (result.exit_code, result.signal) == (code, number)


async def test_only_our_own_mark_says_that_a_program_could_not_start() -> None:
    assert (
        await finished(127, b"No such file or directory", marked=True)
    ).error == "No such file or directory"
    said = await finished(127, b"sh: x: not found")
    assert (said.error, said.exit_code, said.stderr) == (None, 127, b"sh: x: not found")


@given(st.text())
def test_a_path_is_below_a_writable_tree_or_refused(path: str) -> None:
    try:
        parts = files._parts(path)
    except Rejected:
        return
    assert parts[0] in files.ROOTS
    assert len(parts) > 1
    assert not {"..", ".", ""} & set(parts)
    assert not any("/" in part or "\0" in part for part in parts)


def test_containers_are_refused_as_many_calls_as_the_other_backends() -> None:
    assert len(set(refused.DENIED)) == len(refused.DENIED) == len(seccomp._DENIED["x86_64"])
    assert frozenset(seccomp._FAMILIES) == refused._FAMILIES
    assert sum(refused._NAMESPACE_FLAGS) == seccomp._NAMESPACES


def test_no_secret_of_a_command_is_in_the_bundle_and_no_right_is() -> None:
    told = bundle.configuration(Path("/root-fs"), {"/work": Path("/w")}, ["/usr"], {"PATH": "/bin"}, LIMITS)
    assert told["root"]["readonly"]
    assert told["process"]["noNewPrivileges"]
    assert not any(told["process"]["capabilities"].values())
    assert {each["type"] for each in told["linux"]["namespaces"]} >= {"pid", "network", "mount", "ipc", "uts"}
    assert all("ro" in each["options"] for each in told["mounts"] if each["destination"] == "/usr")


@pytest.mark.parametrize("runtime", ["", "gvisor"])
def test_a_pod_is_what_kubernetes_takes(runtime: str) -> None:
    limits = Limits(guarantee=Guarantee(memory_bytes=1 << 20, cpus=0.5, disk_bytes=1 << 20))
    template = resources.template({"name": "t"}, PodSettings("image", runtime), limits, {})
    spec = template["spec"]["podTemplate"]["spec"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}
    kubernetes_validate.validate(pod, kubernetes_validate.latest_version(), strict=True)
    assert template["spec"]["networkPolicy"] == {"ingress": [], "egress": []}
    assert spec["containers"][0]["resources"]["requests"]["cpu"] == "500m"
    assert ("runtimeClassName" in spec) == bool(runtime)


def test_limits_that_make_another_pod_make_another_kind() -> None:
    settings = PodSettings("image")
    assert resources.kind_of(settings, Limits()) == resources.kind_of(settings, Limits(wall_s=1.0))
    assert resources.kind_of(settings, Limits()) != resources.kind_of(settings, Limits(memory_bytes=1 << 30))


def test_inside_a_pod_the_pod_owns_what_is_made() -> None:
    owned = resources.metadata("n", {}, Owner("pod", "u-1"))
    assert owned["ownerReferences"] == [{"apiVersion": "v1", "kind": "Pod", "name": "pod", "uid": "u-1"}]
    assert "ownerReferences" not in resources.metadata("n", {}, Owner())


def test_bwrap_gets_a_user_namespace_or_the_few_rights_that_init_gives_up() -> None:
    words = [
        arguments.command("bwrap", base_python(), Path("/etc-dir"), [], 1 << 20, user_namespace=each)
        for each in (True, False)
    ]
    assert "--unshare-user" in words[0]
    assert "--cap-add" not in words[0]
    assert "--unshare-user" not in words[1]
    assert words[1].count("--cap-add") == 6
    for each in words:
        assert {"--unshare-net", "--unshare-pid", "--die-with-parent", "--clearenv"} <= set(each)
        assert each[each.index("--remount-ro") + 1] == "/dev"
