import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from temper.runtime.errors import Rejected
from temper.sandbox.engine.files import Files, typed


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.fixture
def files(work: Path) -> Iterator[Files]:
    made = Files({"/work": os.open(work, os.O_PATH | os.O_DIRECTORY)}, None, sized=False)
    yield made
    made.close()


def test_mode_and_content_arrive(files: Files, work: Path) -> None:
    files.put("/work/a/b", b"12", 0o750)
    files.put("/work/a/b", b"3", 0o700)
    assert (work / "a/b").read_bytes() == b"3"
    assert (work / "a/b").stat().st_mode & 0o7777 == 0o700


def test_special_bits_are_dropped(files: Files, work: Path) -> None:
    files.put("/work/a", b"", 0o6755)
    assert (work / "a").stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize(
    "path", ["", "/", ".", "/work", "/work/", "../x", "a/../b", "/etc/passwd", "/work/../x", "a\0b"]
)
def test_paths_outside_are_refused_by_name(files: Files, path: str) -> None:
    with pytest.raises(Rejected):
        files.put(path, b"", 0o644)
    with pytest.raises(Rejected):
        files.get(path, 1)


def test_no_link_is_followed_at_any_place_of_a_path(files: Files, work: Path) -> None:
    secret = work.parent / "secret"
    secret.write_text("s")
    (work / "file").symlink_to(secret)
    (work / "dir").symlink_to(work.parent)
    for path in ("file", "dir/secret", "dir/new"):
        with pytest.raises(Rejected, match="link"):
            files.get(path, 10)
        with pytest.raises(Rejected, match="link"):
            files.put(path, b"x", 0o644)
    assert secret.read_text() == "s"
    assert not (work.parent / "new").exists()


def test_a_file_on_the_way_is_named_as_such(files: Files, work: Path) -> None:
    (work / "f").write_bytes(b"1")
    told = r"a link or a file.*only a directory"
    with pytest.raises(Rejected, match=told), typed("/work/f"), files.directory("/work/f"):
        pass
    with pytest.raises(Rejected, match=told):
        files.put("/work/f/x", b"", 0o600)


def test_a_named_pipe_blocks_nobody(files: Files, work: Path) -> None:
    os.mkfifo(work / "pipe")
    with pytest.raises(Rejected, match="regular"):
        files.get("pipe", 1)
    with pytest.raises(Rejected):
        files.put("pipe", b"", 0o644)


def test_a_directory_is_no_file(files: Files, work: Path) -> None:
    (work / "d").mkdir()
    with pytest.raises(Rejected):
        files.get("d", 1)
    with pytest.raises(Rejected):
        files.put("d", b"", 0o644)


def test_a_long_file_is_cut_and_says_so(files: Files) -> None:
    files.put("a", b"12345", 0o644)
    assert files.get("a", 5) == (b"12345", False)
    assert files.get("a", 4) == (b"1234", True)
