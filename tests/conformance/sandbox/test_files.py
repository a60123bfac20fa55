"""The files of a sandbox seen from outside: trees in and out, listing, patching, searching, watching."""

import asyncio
import io
import tarfile
from collections.abc import AsyncIterator

import pytest
from tests.conformance.sandbox.conftest import LIMITS

from temper.runtime.errors import Exhausted, Rejected
from temper.sandbox.engine.base import Backend, Change, Command, Edit, Sandbox
from temper.sandbox.engine.entries import ChangeKind, EntryKind

pytestmark = pytest.mark.asyncio(loop_scope="module")
WAIT_S = 60.0


@pytest.fixture(autouse=True)
def _trees(backend: Backend) -> None:
    if not backend.capabilities.trees:
        pytest.skip("this backend declares no trees")


def tar(*members: tuple[str, str | bytes], kind: bytes = tarfile.REGTYPE) -> bytes:
    """An archive of files, or of links when `kind` says so (then the content is the target)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in members:
            entry = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
            else:
                entry.type, entry.linkname = kind, content
                archive.addfile(entry)
    return buffer.getvalue()


async def pieces(content: bytes, size: int = 1000) -> AsyncIterator[bytes]:
    for start in range(0, len(content), size):
        yield content[start : start + size]


async def collect(chunks: AsyncIterator[bytes]) -> tarfile.TarFile:
    return tarfile.open(fileobj=io.BytesIO(b"".join([chunk async for chunk in chunks])))


async def test_a_tree_comes_out_as_it_went_in(sandbox: Sandbox) -> None:
    content = tar(
        ("a.txt", b"1"),
        ("deep/er/b", b"\xff" * 3000),
        ("--x", b""),
        ("deep/link", "/etc/passwd"),
        kind=tarfile.SYMTYPE,
    )
    assert await sandbox.put_tree("/work/in", pieces(content)) == 4
    with await collect(sandbox.get_tree("/work/in")) as out:
        kinds = {member.name: member.type for member in out}
        assert kinds == {
            "--x": tarfile.REGTYPE,
            "a.txt": tarfile.REGTYPE,
            "deep": tarfile.DIRTYPE,
            "deep/er": tarfile.DIRTYPE,
            "deep/er/b": tarfile.REGTYPE,
            "deep/link": tarfile.SYMTYPE,
        }
        assert out.getmember("deep/link").linkname == "/etc/passwd"
        member = out.extractfile("deep/er/b")
        assert member is not None
        assert member.read() == b"\xff" * 3000


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x"])
async def test_an_archive_that_would_leave_its_place_is_refused_whole(sandbox: Sandbox, name: str) -> None:
    with pytest.raises(Rejected, match="leaves"):
        await sandbox.put_tree("/work", pieces(tar(("fine", b"1"), (name, b"2"))))
    assert await sandbox.list_files("/work") == []


async def test_an_archive_through_its_own_link_is_refused_whole(sandbox: Sandbox) -> None:
    content = tar(("out", "/etc"), ("out/passwd", b"root"), kind=tarfile.SYMTYPE)
    with pytest.raises(Rejected, match="link"):
        await sandbox.put_tree("/work", pieces(content))
    assert await sandbox.list_files("/work") == []


async def test_a_device_in_an_archive_is_refused(sandbox: Sandbox) -> None:
    with pytest.raises(Rejected, match="no file"):
        await sandbox.put_tree("/work", pieces(tar(("null", ""), kind=tarfile.CHRTYPE)))


async def test_what_is_no_archive_is_the_callers_mistake(sandbox: Sandbox) -> None:
    with pytest.raises(Rejected, match="archive"):
        await sandbox.put_tree("/work", pieces(b"nonsense" * 200))


async def test_a_tree_too_big_for_the_disk_is_told_so(sandbox: Sandbox, backend: Backend) -> None:
    if "disk_bytes" not in backend.capabilities.enforced:
        pytest.skip("this backend does not declare that it enforces disk_bytes")
    with pytest.raises(Exhausted, match="disk"):
        await sandbox.put_tree("/work", pieces(tar(("big", bytes(LIMITS.disk_bytes + 1))), 1 << 20))


async def test_entries_are_listed_in_order_and_links_are_described(sandbox: Sandbox) -> None:
    await sandbox.make_directory("/work/d/e")
    await sandbox.put_file("/work/d/a", b"123", 0o640)
    await sandbox.put_tree("/work/d", pieces(tar(("to", "../../etc"), kind=tarfile.SYMTYPE)))
    found = await sandbox.list_files("/work", depth=3)
    assert [(each.path, each.kind) for each in found] == [
        ("/work/d", EntryKind.DIRECTORY),
        ("/work/d/a", EntryKind.FILE),
        ("/work/d/e", EntryKind.DIRECTORY),
        ("/work/d/to", EntryKind.LINK),
    ]
    one = await sandbox.stat("d/a")
    assert (one.path, one.size, one.mode) == ("/work/d/a", 3, 0o640)
    assert (await sandbox.stat("/work/d/to")).target == "../../etc"
    assert (await sandbox.stat("/work")).kind is EntryKind.DIRECTORY
    assert len(await sandbox.list_files("/work", depth=1)) == 1


async def test_a_tree_deeper_than_any_listing_is_no_error_of_the_host(
    sandbox: Sandbox, programs: None
) -> None:
    code = "import os\nfor _ in range(1200):\n    os.mkdir('d')\n    os.chdir('d')\n"
    await sandbox.execute(Command(("python3", "-c", code)), LIMITS)
    assert len(await sandbox.list_files("/work", 128)) >= 128
    with pytest.raises(Rejected, match="depth"):
        await sandbox.list_files("/work", 100_000)


async def test_what_is_not_there_is_said_so(sandbox: Sandbox) -> None:
    for asked in (sandbox.stat("/work/no"), sandbox.list_files("/work/no"), sandbox.remove("/work/no")):
        with pytest.raises(Rejected, match="no such file"):
            await asked


async def test_trees_are_removed_only_on_purpose(sandbox: Sandbox) -> None:
    await sandbox.put_file("/work/d/e/f", b"")
    with pytest.raises(Rejected, match="recursively"):
        await sandbox.remove("/work/d")
    await sandbox.remove("/work/d", recursive=True)
    assert await sandbox.list_files("/work") == []


async def test_a_patch_is_all_or_nothing(sandbox: Sandbox) -> None:
    await sandbox.put_file("/work/f", b"one two two\n", 0o755)
    with pytest.raises(Rejected, match="there 2 times"):
        await sandbox.patch("/work/f", [Edit("one", "1"), Edit("two", "2")])
    with pytest.raises(Rejected, match="not there"):
        await sandbox.patch("/work/f", [Edit("one", "1"), Edit("three", "3")])
    assert await sandbox.get_file("/work/f", 99) == (b"one two two\n", False)
    info = await sandbox.patch("/work/f", [Edit("one", "1"), Edit("two", "2", everywhere=True)])
    assert (info.size, info.mode) == (6, 0o755)
    assert await sandbox.get_file("/work/f", 99) == (b"1 2 2\n", False)


async def test_lines_are_found_where_they_are(sandbox: Sandbox, programs: None) -> None:
    await sandbox.put_file("/work/a/x.py", b"import os\n\nos.sep # \xff\n")
    await sandbox.put_file("/work/y", b"nothing\n")
    found = await sandbox.search(r"os\.|import", "/work/a")
    assert [(each.path, each.line) for each in found] == [("/work/a/x.py", 1), ("/work/a/x.py", 3)]
    assert await sandbox.search("absent") == []
    assert len(await sandbox.search("o", limit=1)) == 1
    with pytest.raises(Rejected, match="pattern"):
        await sandbox.search("(")


@pytest.mark.usefixtures("shared_kernel")
async def test_changes_are_told_as_they_happen(sandbox: Sandbox, programs: None) -> None:
    await sandbox.make_directory("/work/old")
    seen: list[Change] = []
    changes = sandbox.watch("/work")

    async def until(kind: ChangeKind, path: str) -> None:
        async with asyncio.timeout(WAIT_S):
            while Change(kind, path) not in seen:
                seen.append(await anext(changes))

    first = asyncio.create_task(until(ChangeKind.CREATED, "/work/a"))
    await asyncio.sleep(0)  # the watch stands before the file comes
    await sandbox.execute(Command(("sh", "-c", "echo 1 > a; mkdir new; echo 2 > new/b; rm -r old")), LIMITS)
    await first
    await until(ChangeKind.MODIFIED, "/work/a")
    await until(ChangeKind.CREATED, "/work/new/b")
    await until(ChangeKind.REMOVED, "/work/old")
    await changes.aclose()  # type: ignore[attr-defined]  # every one is a generator
