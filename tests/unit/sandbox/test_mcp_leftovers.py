"""What a killed MCP server leaves is removed by the next one of the same user."""

import json
import os
from pathlib import Path

from temper.sandbox.engine import records
from temper.sandbox.mcp import reclaim_left


def test_the_next_server_removes_what_dead_ones_left_and_no_more(tmp_path: Path) -> None:
    dead, living, empty = (tmp_path / f"temper-mcp-{name}" for name in ("dead", "living", "empty"))
    for each in (dead, living, empty):
        (each / "root").mkdir(parents=True)
    records.write(living, (), ())
    record = {"pid": os.getpid(), "started": 1, "groups": [], "directories": [str(dead / "left")]}
    (dead / "left" / "deep").mkdir(parents=True)
    (dead / "owner-1-2-3.json").write_text(json.dumps(record))
    (tmp_path / "temper-mcp-link").symlink_to(living)
    assert reclaim_left(tmp_path) == 1
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "temper-mcp-empty",
        "temper-mcp-link",
        "temper-mcp-living",
    ]
