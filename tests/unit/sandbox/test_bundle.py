import hashlib
import io
import tarfile
from pathlib import Path

import pytest
from tests.unit.sandbox.worlds import tar

from temper.runtime.errors import Rejected
from temper.sandbox import bundle


def unpack(content: bytes, path: Path) -> Path:
    return bundle.unpack(content, hashlib.sha256(content).hexdigest(), path / "cache")


def with_member(name: str, kind: bytes, link: str = "") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, link
        archive.addfile(member)
    return buffer.getvalue()


def test_a_bundle_is_unpacked_once_and_found_again(tmp_path: Path) -> None:
    content = tar({"env.toml": "x", "data/a.txt": "1"})
    first = unpack(content, tmp_path)
    (first / "mark").touch()
    assert unpack(content, tmp_path) == first
    assert (first / "mark").exists()
    assert (first / "data" / "a.txt").read_text() == "1"
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [first.name]


@pytest.mark.parametrize("name", ["../evil", "/evil", "a/../../evil", ".."])
def test_a_path_that_leaves_the_bundle_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(Rejected, match="leaves"):
        unpack(tar({name: "x"}), tmp_path)
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_anything_but_files_and_directories_is_refused(tmp_path: Path, kind: bytes) -> None:
    with pytest.raises(Rejected, match="neither"):
        unpack(with_member("link", kind, "/etc/passwd"), tmp_path)


def test_a_failed_bundle_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(Rejected):
        unpack(tar({"good": "1", "../evil": "x"}), tmp_path)
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"no tar", b"\x1f\x8b nonsense"])
def test_what_is_no_tar_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(Rejected, match="bundle"):
        unpack(content, tmp_path)


def test_a_path_named_twice_is_refused(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for _ in range(2):
            archive.addfile(tarfile.TarInfo("same"), io.BytesIO())
    with pytest.raises(Rejected, match="twice"):
        unpack(buffer.getvalue(), tmp_path)


def test_a_bundle_that_grows_beyond_bounds_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "MAX_BYTES", 10)
    with pytest.raises(Rejected, match="over"):
        unpack(tar({"a": "x" * 11}), tmp_path)


def test_executable_bits_survive_and_nothing_else(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo("run")
        member.mode = 0o6777
        archive.addfile(member)
    assert (unpack(buffer.getvalue(), tmp_path) / "run").stat().st_mode & 0o7777 == 0o755
