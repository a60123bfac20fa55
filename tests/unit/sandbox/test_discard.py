"""Trees that an agent has built go away, whatever it thought of."""

import os
from pathlib import Path

from temper.sandbox.engine.discard import discard


def test_a_tree_of_any_depth_goes(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    here = os.open(tree, os.O_RDONLY)
    for _ in range(1200):  # deeper than the stack, longer than a path
        os.mkdir("d" * 10, dir_fd=here)
        below = os.open("d" * 10, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    discard(tree)
    assert not tree.exists()


def test_odd_entries_go_and_what_links_lead_to_stays(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    tree = tmp_path / "tree"
    for name in ("shut/inner", ".moved-1/full", ".moved-2", os.fsdecode(b"\xff\n")):
        (tree / name).mkdir(parents=True)
    (tree / ".moved-1" / "file").write_text("x")
    (tree / ".moved-3").write_text("x")
    (tree / "link").symlink_to(outside)
    (tree / "shut" / "link").symlink_to(outside)
    os.mkfifo(tree / "pipe")
    (tree / "shut" / "inner").chmod(0)
    (tree / "shut").chmod(0)
    discard(tree)
    assert not tree.exists()
    assert (outside / "kept").exists()


def test_what_is_not_there_is_fine(tmp_path: Path) -> None:
    discard(tmp_path / "nothing")
    (tmp_path / "link").symlink_to(tmp_path)
    discard(tmp_path / "link")
    assert tmp_path.exists()
