import io
import os
import tarfile
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.qa.subjects import double, tree_of

from temper.qa import digest
from temper.qa.digest import Entry
from temper.runtime.errors import Rejected

names = st.from_regex(r"[a-z]{1,6}(/[a-z]{1,6}){0,2}\.txt", fullmatch=True)
trees = st.dictionaries(names, st.tuples(st.binary(max_size=40), st.booleans()), min_size=1, max_size=6).map(
    lambda files: tuple(Entry(name, files[name][1], files[name][0]) for name in sorted(files))
)


@given(trees)
def test_unpacking_a_packed_tree_gives_the_tree(tree):
    assert digest.read_tar(digest.write_tar(tree)) == tree


@given(trees)
def test_equal_trees_pack_to_equal_bytes_and_digests(tree):
    again = digest.read_tar(digest.write_tar(tree))
    assert digest.write_tar(again) == digest.write_tar(tree)
    assert digest.digest(again, "{}") == digest.digest(tree, "{}")


@given(trees, st.data())
def test_any_changed_byte_changes_the_digest(tree, data):
    place = data.draw(st.integers(0, len(tree) - 1))
    entry = tree[place]
    changed = Entry(entry.path, entry.executable, entry.content + b"x")
    assert digest.digest((*tree[:place], changed, *tree[place + 1 :]), "{}") != digest.digest(tree, "{}")


def test_two_checkouts_have_one_digest_whatever_their_times_and_group_permissions(tmp_path):
    one = double(tmp_path / "one")
    double(tmp_path / "two")
    os.utime(tmp_path / "two/env.py", (time.time() - 9999, 0))
    (tmp_path / "two/env.py").chmod(0o600)
    (tmp_path / "two/__pycache__").mkdir()
    (tmp_path / "two/__pycache__/env.pyc").write_bytes(b"compiled")
    two = digest.read_directory(tmp_path / "two")
    assert digest.digest(one, "{}") == digest.digest(two, "{}")
    assert digest.write_tar(one) == digest.write_tar(two)


def test_exec_bit_path_link_and_parameters_count(tmp_path):
    base = tree_of({"a.sh": "echo"}, tmp_path / "base")
    tree_of({"a.sh": "echo"}, tmp_path / "exec")
    (tmp_path / "exec/a.sh").chmod(0o755)
    tree_of({"b.sh": "echo"}, tmp_path / "name")
    tree_of({"a.sh": "echo"}, tmp_path / "link")
    (tmp_path / "link/b").symlink_to("a.sh")
    others = [digest.read_directory(tmp_path / name) for name in ("exec", "name", "link")]
    digests = {digest.digest(tree, "{}") for tree in (base, *others)} | {digest.digest(base, '{"a":1}')}
    assert len(digests) == 5


@pytest.mark.parametrize("name", ["../out", "/etc/passwd", "a/../../out"])
def test_a_path_that_leaves_the_asset_is_refused(name):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    with pytest.raises(Rejected, match="leaves the asset"):
        digest.read_tar(buffer.getvalue())


def test_a_link_that_leaves_the_asset_is_refused(tmp_path):
    tree_of({"a": ""}, tmp_path)
    (tmp_path / "link").symlink_to("../../etc/passwd")
    with pytest.raises(Rejected, match="leaves the asset"):
        digest.read_directory(tmp_path)


def test_something_else_than_a_tar_is_refused_and_so_is_an_empty_one():
    with pytest.raises(Rejected, match="not a tar"):
        digest.read_tar(b"hello" * 300)
    buffer = io.BytesIO()
    tarfile.open(fileobj=buffer, mode="w").close()
    with pytest.raises(Rejected, match="empty"):
        digest.read_tar(buffer.getvalue())


def test_a_device_in_a_tar_is_refused():
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo("null")
        member.type = tarfile.CHRTYPE
        archive.addfile(member)
    with pytest.raises(Rejected, match="neither a file nor a link"):
        digest.read_tar(buffer.getvalue())
