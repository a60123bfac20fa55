"""What comes from inside, from a tar or from the bus may be anything: it is refused with a typed error, or it is harmless."""

import asyncio
import contextlib
import io
import json
import os
import socket
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.sandbox.worlds import LIMITS, World

from temper.api.common.v1 import common_pb2
from temper.api.sandbox.v1 import sandbox_pb2 as pb
from temper.runtime.clock import SystemClock
from temper.runtime.errors import Rejected, TemperError
from temper.sandbox import bundle
from temper.sandbox.actor import SandboxActor
from temper.sandbox.engine.channel import Interpreter
from temper.sandbox.engine.files import Files
from temper.sandbox.engine.guest import wire

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
ANSWERS = st.one_of(
    JSON.map(lambda value: json.dumps(value).encode()),
    st.fixed_dictionaries({"id": JSON, "error": JSON}).map(lambda value: json.dumps(value).encode()),
    st.binary(max_size=64),
    st.just(b"[" * 40_000),
)
SOME = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


@given(st.binary(max_size=200), st.integers(1, 50))
def test_any_bytes_are_messages_or_malformed(data: bytes, size: int) -> None:
    decoder = wire.Decoder(limit=1 << 16)
    try:
        for start in range(0, len(data), size):
            for message in decoder.feed(data[start : start + size]):
                assert isinstance(message, dict)
    except wire.Malformed:
        pass


def test_brackets_without_end_are_malformed() -> None:
    with pytest.raises(wire.Malformed):
        wire.Decoder().feed(frame(b'{"a":' * 50_000))


def test_a_long_message_is_refused_by_its_head_before_it_is_kept() -> None:
    with pytest.raises(wire.Malformed):
        wire.Decoder(limit=100).feed((101).to_bytes(4, "big"))


class SilentLink:
    """Stands where init's link would be: the interpreter's far end is the test itself."""

    def __init__(self) -> None:
        self.far: socket.socket | None = None

    def expect(self, _: object) -> "asyncio.Future[wire.Message]":
        return asyncio.get_running_loop().create_future()

    def send(self, _: wire.Message, descriptors: tuple[int, ...] = ()) -> None:
        self.far = socket.socket(fileno=os.dup(descriptors[0]))


@SOME
@given(st.lists(ANSWERS, min_size=1, max_size=4))
def test_nothing_that_an_interpreter_says_breaks_its_host(bodies: list[bytes]) -> None:
    async def talk() -> None:
        link = SilentLink()
        interpreter = Interpreter(link, LIMITS)  # type: ignore[arg-type]  # has the two methods it needs
        assert link.far is not None
        try:
            answer = interpreter.ask("1")
            link.far.sendall(b"".join(frame(body) for body in bodies))
            link.far.close()
            async with asyncio.timeout(10):
                assert await answer is None or isinstance(answer.result(), str)
                assert await interpreter.ask("2") is None  # it has gone, or talked out of turn: told at once
        finally:
            link.far.close()
            interpreter.close()

    asyncio.run(talk())


async def test_who_talks_without_being_asked_is_not_listened_to_again() -> None:
    link = SilentLink()
    interpreter = Interpreter(link, LIMITS)  # type: ignore[arg-type]  # has the two methods it needs
    assert link.far is not None
    try:
        first = interpreter.ask("1")
        link.far.sendall(wire.encode({"id": 1, "error": None}) + wire.encode({"id": 2, "error": None}))
        async with asyncio.timeout(10):
            await first
            assert await interpreter.ask("2") is None
    finally:
        link.far.close()
        interpreter.close()


NAMES = st.text(alphabet=st.sampled_from("ab./\\\0 ~-é\n"), max_size=12) | st.sampled_from(
    ["../x", "/etc/passwd", "a/../../x", "a" * 300, "./a", "a/", "a", "a/b", ".", ""]
)
KINDS = st.sampled_from(
    [tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE]
)
MEMBERS = st.lists(st.tuples(NAMES, KINDS, NAMES, st.integers(0, 0o7777)), max_size=6)


def archive(members: list[tuple[str, bytes, str, int]]) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as file:
        for name, kind, link, mode in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.mode, member.size = kind, link, mode, 0
            member.devmajor = member.devminor = 1
            if kind == tarfile.REGTYPE:
                member.size = 3
            file.addfile(member, io.BytesIO(b"abc"))
    return target.getvalue()


def unpacked(content: bytes, place: Path) -> None:
    """Unpack into `place / cache`; whatever happened, nothing but plain files lies there and nothing beside it."""
    cache = place / "cache"
    with contextlib.suppress(Rejected):
        bundle.unpack(content, os.urandom(8).hex(), cache)
    assert {entry.name for entry in place.iterdir()} <= {"cache"}
    for path in cache.rglob("*"):
        assert path.is_file() or path.is_dir()
        assert not path.is_symlink()
        assert path.stat().st_mode & 0o7000 == 0
    assert not list(cache.glob("unpacking-*"))


@SOME
@given(members=MEMBERS)
def test_no_tar_writes_outside_its_bundle(
    members: list[tuple[str, bytes, str, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    unpacked(archive(members), tmp_path_factory.mktemp("tar"))


@SOME
@given(data=st.data())
def test_no_damaged_tar_is_anything_but_refused(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = bytearray(archive([("a", tarfile.REGTYPE, "", 0o644), ("é" * 60, tarfile.REGTYPE, "", 0o644)]))
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, 2600))] = data.draw(st.integers(0, 255))
    unpacked(bytes(content), tmp_path_factory.mktemp("tar"))


def test_a_compressed_bomb_is_no_bundle(tmp_path: Path) -> None:
    import gzip

    with pytest.raises(Rejected):
        bundle.unpack(gzip.compress(bytes(64 << 20)), "d", tmp_path)


PATHS = st.text(alphabet=st.sampled_from("ab./\\\0 -\n"), max_size=16) | st.sampled_from(
    ["../../etc/passwd", "/work/../etc/passwd", "/etc/passwd", "--x", "; rm -rf /", "$(id)", "a" * 300]
)


@SOME
@given(path=PATHS)
def test_no_path_reaches_beyond_the_sandboxs_trees(
    path: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("files")
    (place / "work").mkdir()
    (place / "secret").write_text("s")
    (place / "work" / "link").symlink_to("..")
    files = Files({"/work": os.open(place / "work", os.O_RDONLY)}, None, sized=False)
    try:
        files.put(path, b"x", 0o644)
        assert files.get(path, 10) == (b"x", False)
    except TemperError:
        pass
    finally:
        files.close()
    assert {entry.name for entry in place.iterdir()} == {"work", "secret"}
    assert (place / "secret").read_text() == "s"


TEXTS = st.text(max_size=12) | st.sampled_from(["s", "a/../b", "\x00", "[" * 5000, '{"code": "1"}', "{"])
NUMBERS = st.sampled_from([0, 1, 7, 2**31, 2**32 - 1])
REALS = st.sampled_from([0.0, 1.0, -1.0, float("nan"), float("inf"), 1e308])


METHODS = ("step", "acquire", "execute", "put_file", "get_file", "renew_lease", "release")


def messages(env: common_pb2.EnvRef) -> st.SearchStrategy[tuple[str, Any]]:
    call = st.builds(pb.ToolCall, name=st.sampled_from(["python", "shell", "x"]), arguments_json=TEXTS)
    limits = st.builds(
        pb.Limits, memory_bytes=NUMBERS, cpu_milli=NUMBERS, pids=NUMBERS, wall_s=REALS, cpu_s=REALS
    )
    session = {"session_id": TEXTS}
    envs = st.sampled_from([env, common_pb2.EnvRef()])
    step = {"command_id": TEXTS, "env": envs, "split": TEXTS, "task_index": NUMBERS, "call": call}
    requests = {
        "step": st.builds(pb.StepRequest, **session, **step, limits=limits, lease_s=REALS),
        "acquire": st.builds(pb.AcquireRequest, **session, limits=limits, lease_s=REALS, min_isolation=TEXTS),
        "execute": st.builds(
            pb.ExecRequest, **session, command_id=TEXTS, argv=st.lists(TEXTS, max_size=2), cwd=TEXTS
        ),
        "put_file": st.builds(
            pb.PutFileRequest, **session, path=TEXTS, content=st.binary(max_size=4), mode=NUMBERS
        ),
        "get_file": st.builds(pb.GetFileRequest, **session, path=TEXTS),
        "renew_lease": st.builds(pb.RenewLeaseRequest, **session, epoch=NUMBERS, lease_s=REALS),
        "release": st.builds(pb.ReleaseRequest, **session, acquire_id=TEXTS),
    }
    return st.one_of([st.tuples(st.just(name), each) for name, each in requests.items()])


def test_no_request_gets_an_untyped_answer(tmp_path_factory: pytest.TempPathFactory) -> None:
    async def serve() -> None:
        world = World(tmp_path_factory.mktemp("world"), SystemClock())
        env = world.bundles.add()
        actor = SandboxActor(world.host, world.episodes, world.control, LIMITS, slots=4)
        methods: dict[str, Any] = {
            name: getattr(world.episodes if name == "step" else actor, name) for name in METHODS
        }

        async def ask(name: str, request: Any) -> None:
            with contextlib.suppress(TemperError):
                await methods[name](request)

        loop = asyncio.get_running_loop()

        @SOME
        @given(messages(env))
        def fuzz(drawn: tuple[str, Any]) -> None:
            asyncio.run_coroutine_threadsafe(ask(*drawn), loop).result(30)

        await asyncio.to_thread(fuzz)
        await world.close()

    asyncio.run(serve())
