# ruff: noqa: ASYNC240 - small files of the test's own block nobody here
"""Games with links, names and trees: the host's hand never reaches out of the sandbox, and never in a way it did not mean."""

import asyncio
import io
import tarfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.conformance.sandbox.attacks import code, said, shell
from tests.conformance.sandbox.conftest import LIMITS

from temper.runtime.errors import Exhausted, Rejected, TemperError
from temper.sandbox.engine.base import Backend, Command, Isolation, Sandbox

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("programs")]


@pytest.fixture
def trees(backend: Backend) -> None:
    if not backend.capabilities.trees:
        pytest.skip("this backend does not declare trees")


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text("the host's own")
    return path


async def refused(sandbox: Sandbox, path: str) -> None:
    with pytest.raises(Rejected):
        await sandbox.get_file(path, 100)
    with pytest.raises(Rejected):
        await sandbox.put_file(path, b"evil")


@pytest.mark.parametrize(
    "line",
    [
        "ln -s {secret} target",
        "ln -s {parent} dir; ln -s dir/secret target",
        "ln -s / root; ln -s root{secret} target",
        "ln -s /proc/self/root{secret} target",
        "ln -s ../../../../../../../../../..{secret} target",
        "ln -s target target",
        "ln -s /proc/1/environ target",
        "mkfifo target",
        "mkdir target",
    ],
)
async def test_a_link_is_never_followed_by_the_host(
    backend: Backend, sandbox: Sandbox, secret: Path, line: str
) -> None:
    if "mkfifo" in line and backend.capabilities.isolation > Isolation.NAMESPACE:
        pytest.skip("this backend declares a kernel of its own, whose pipes are no files of the host")
    await shell(sandbox, line.format(secret=secret, parent=secret.parent))
    await refused(sandbox, "target")
    assert secret.read_text() == "the host's own"


async def test_a_directory_that_is_a_link_is_not_entered(sandbox: Sandbox, secret: Path) -> None:
    await shell(sandbox, f"ln -s {secret.parent} dir")
    await refused(sandbox, "dir/secret")
    with pytest.raises(Rejected):
        await sandbox.put_file("dir/new", b"evil")
    assert [path.name for path in secret.parent.iterdir()] == ["secret"]


async def test_a_path_that_is_swapped_while_the_host_walks_it_leads_nowhere(
    sandbox: Sandbox, secret: Path
) -> None:
    text = (
        "import threading\nos.makedirs('/work/a/b', exist_ok=True)\n"
        f"os.symlink({str(secret.parent)!r}, '/work/link')\n"
        "def swap():\n    while True:\n        for x, y in (('a', 'keep'), ('link', 'a'), ('a', 'link'), ('keep', 'a')):\n"
        "            try: os.rename('/work/' + x, '/work/' + y)\n            except OSError: pass\n"
        "threading.Thread(target=swap, daemon=True).start()"
    )
    await code(sandbox, text)
    for _ in range(200):
        for path in ("a/secret", "a/b/x"):
            try:
                await sandbox.put_file(path, b"evil")
                content, _ = await sandbox.get_file(path, 100)
                assert content == b"evil"
            except TemperError:
                continue
    assert secret.read_text() == "the host's own"
    assert [path.name for path in secret.parent.iterdir()] == ["secret"]


async def test_a_hard_link_out_of_its_trees_cannot_be_made(sandbox: Sandbox, isolated: None) -> None:
    text = "for source in ('/etc/passwd', '/usr/bin/env', '/dev/null', '/proc/self/environ'):\n    print(attempt(lambda: os.link(source, '/work/hard')))"
    assert "allowed" not in await code(sandbox, text)


async def test_a_mode_that_the_agent_set_gives_nothing_to_what_the_host_writes(sandbox: Sandbox) -> None:
    await shell(sandbox, "touch f; chmod 6777 f")
    await sandbox.put_file("f", b"x", 0o7755)
    assert await said(sandbox, "find f -printf %m") == "755"


async def test_a_file_that_grows_while_it_is_read_comes_out_bounded(sandbox: Sandbox) -> None:
    await shell(sandbox, "(while :; do echo grow >> f; done) & sleep 0.05")
    content, _ = await sandbox.get_file("f", 1000)
    assert len(content) <= 1000


@pytest.mark.parametrize(
    "name", ["; rm -rf /work", "$(touch /work/pwned)", "`touch /work/pwned`", "--help", "a\nb", "*", "~", "é"]
)
async def test_a_name_is_a_name_and_no_command(sandbox: Sandbox, name: str) -> None:
    await sandbox.put_file(f"/work/{name}", b"1")
    assert await sandbox.get_file(f"/work/{name}", 10) == (b"1", False)
    assert "pwned" not in await said(sandbox, "ls -a /work")
    result = await sandbox.execute(Command(("cat", "--", f"./{name}")), LIMITS)
    if result.error is None:
        assert result.stdout == b"1"


Entry = tuple[str, bytes, str]
OUT = [
    ("../up", tarfile.REGTYPE, ""),
    ("a/../../up", tarfile.REGTYPE, ""),
    ("/work/abs", tarfile.REGTYPE, ""),
    ("/etc/abs", tarfile.REGTYPE, ""),
    ("dev", tarfile.CHRTYPE, ""),
    ("disk", tarfile.BLKTYPE, ""),
    ("pipe", tarfile.FIFOTYPE, ""),
    ("hard", tarfile.LNKTYPE, "/etc/passwd"),
    ("hard", tarfile.LNKTYPE, "../../etc/passwd"),
]


def tar(*entries: Entry) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, kind, link in entries:
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.mode = kind, link, 0o6777
            member.size = 4 if kind == tarfile.REGTYPE else 0
            archive.addfile(member, io.BytesIO(b"evil"))
    return buffer.getvalue()


async def chunks(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), 700):
        yield data[start : start + 700]


@pytest.mark.parametrize("entry", OUT)
async def test_a_tree_with_an_entry_that_leads_out_is_refused_whole(
    sandbox: Sandbox, trees: None, entry: Entry
) -> None:
    with pytest.raises(Rejected):
        await sandbox.put_tree("/work/in", chunks(tar(("good", tarfile.REGTYPE, ""), entry)))
    assert "evil" not in await said(sandbox, "cat /work/in/good /work/up /work/abs 2>/dev/null")


async def test_a_tree_does_not_write_through_its_own_links(
    sandbox: Sandbox, trees: None, secret: Path
) -> None:
    entries = [("link", tarfile.SYMTYPE, str(secret.parent)), ("link/secret", tarfile.REGTYPE, "")]
    with pytest.raises(TemperError):
        await sandbox.put_tree("/work/in", chunks(tar(*entries)))
    assert secret.read_text() == "the host's own"


async def test_a_tree_does_not_write_through_links_that_lie_there(
    sandbox: Sandbox, trees: None, secret: Path
) -> None:
    await shell(sandbox, f"mkdir in; ln -s {secret.parent} in/link; ln -s {secret} in/file")
    for name in ("link/secret", "file"):
        try:
            await sandbox.put_tree("/work/in", chunks(tar((name, tarfile.REGTYPE, ""))))
        except TemperError:
            continue
    assert secret.read_text() == "the host's own"


async def test_a_setuid_bit_does_not_travel_either_way(sandbox: Sandbox, trees: None) -> None:
    await sandbox.put_tree("/work/in", chunks(tar(("f", tarfile.REGTYPE, ""))))
    assert len(await said(sandbox, "find in/f -printf %m")) == 3
    await shell(sandbox, "mkdir out; cp /bin/true out/t; chmod 6755 out/t")
    content = b"".join([piece async for piece in sandbox.get_tree("/work/out")])
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        assert all(member.mode & 0o7000 == 0 for member in archive)


async def test_a_tree_that_comes_down_holds_links_as_links_and_nothing_that_acts(
    sandbox: Sandbox, trees: None, secret: Path
) -> None:
    await shell(
        sandbox, f"mkdir out; echo 1 > out/a; ln out/a out/b; ln -s {secret} out/link; mkfifo out/pipe"
    )
    content = b"".join([piece async for piece in sandbox.get_tree("/work/out")])
    assert b"the host's own" not in content
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for member in archive:
            assert member.isfile() or member.isdir() or member.issym()
            assert not member.name.startswith("/")
            assert ".." not in member.name.split("/")


async def test_a_tree_that_is_larger_than_the_disk_is_the_tasks_end_and_not_the_hosts(
    sandbox: Sandbox, trees: None, enforces: Callable[[str], None]
) -> None:
    enforces("disk_bytes")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo("big")
        member.size = LIMITS.disk_bytes + (1 << 20)
        archive.addfile(member, io.BytesIO(bytes(member.size)))
    with pytest.raises(Exhausted):
        await sandbox.put_tree("/work/in", chunks(buffer.getvalue()))
    await sandbox.reset()
    await sandbox.put_file("/work/a", b"1")


async def test_a_tree_that_lies_about_its_size_is_refused(sandbox: Sandbox, trees: None) -> None:
    good = tar(("f", tarfile.REGTYPE, ""))
    with pytest.raises(Rejected):
        await sandbox.put_tree("/work/in", chunks(good[:700]))


async def test_a_file_system_that_changes_under_a_download_ends_it(sandbox: Sandbox, trees: None) -> None:
    await shell(
        sandbox,
        "mkdir -p out/d; (while :; do rm -rf out/d; mkdir out/d; ln -s /etc out/d/e; echo x > out/d/f; done) & sleep 0.05",
    )
    for _ in range(10):
        async with asyncio.timeout(20):
            try:
                content = b"".join([piece async for piece in sandbox.get_tree("/work/out")])
            except TemperError:
                continue
        assert b"root:" not in content
