"""Run every benchmark in its own process, one after another, and print the table.

    python -m bench            all of them
    python -m bench NAME ...   some of them

Exit code 1 when a judged ratio misses its floor or a script fails.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
NOT_SCRIPTS = {"__init__", "__main__", "result", "rollout_policy"}
SETTLE_S = 60.0  # longest wait for the last script's load to fade
LIMIT_S = 900.0


def settle(limit_s: float = SETTLE_S) -> None:
    """Wait until the one-minute load average allows a judgement, or the limit is reached."""
    end = time.monotonic() + limit_s
    while os.getloadavg()[0] > 1.2 and time.monotonic() < end:
        time.sleep(2)


def run(name: str) -> list[dict[str, Any]]:
    """Every JSON line of one script; a script that fails gives one line that says so."""
    settle()
    try:
        done = subprocess.run(
            [sys.executable, "-m", f"bench.{name}"],
            stdout=subprocess.PIPE,
            text=True,
            timeout=LIMIT_S,
            check=False,
            cwd=HERE.parent,
        )
    except subprocess.TimeoutExpired:
        return [{"name": name, "holds": False, "reason": f"no end after {LIMIT_S:.0f} s"}]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"name"')]
    if done.returncode or not lines:
        lines.append({"name": name, "holds": False, "reason": f"exit code {done.returncode}"})
    return lines


def show(rows: list[dict[str, Any]]) -> None:
    """The table: what was measured against what was promised."""
    print(f"\n{'benchmark':<34}{'ratio':>10}{'floor':>8}{'good':>8}  verdict")
    for row in rows:
        verdict = {True: "holds", False: "MISSED", None: "not judged"}[row.get("holds")]
        cells = (row.get(key) for key in ("ratio", "floor", "good"))
        ratio, floor, good = ("-" if cell is None else f"{cell:g}" for cell in cells)
        sign = "≤" if row.get("better") == "lower" else "≥"
        print(f"{row['name']:<34}{ratio:>10}{sign + floor:>8}{good:>8}  {verdict}  {row.get('reason', '')}")


def main() -> int:
    known = sorted(path.stem for path in HERE.glob("*.py") if path.stem not in NOT_SCRIPTS)
    names = sys.argv[1:] or known
    if unknown := sorted(set(names) - set(known)):
        print(f"no such benchmark: {', '.join(unknown)}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    rows: list[dict[str, Any]] = []
    for name in names:
        print(f"… {name}", file=sys.stderr)
        rows += run(name)
    show(rows)
    return int(any(row.get("holds") is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())
