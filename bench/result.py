"""The line every benchmark ends with, and the rule for when a number may be judged.

    {"name": "...", "ratio": 0.71, "floor": 0.5, "good": 0.75, "better": "higher", "holds": true, "load": 0.4}

`holds` compares the ratio with `floor`. Above a load average of 1.5 other work shares the cores and nothing is judged:
`holds` is null and `reason` says so.
"""

from __future__ import annotations

import json
import os
from typing import Literal

BUSY = 1.5  # load average above which two cores are shared with other work


def report(
    name: str,
    ratio: float | None,
    *,
    floor: float | None,
    good: float | None,
    better: Literal["higher", "lower"] = "higher",
    load: float | None = None,
    **details: object,
) -> dict[str, object]:
    """Print and return the closing line. `load` is the load average before the run began; taken now when absent."""
    load = os.getloadavg()[0] if load is None else load
    line: dict[str, object] = {
        "name": name,
        "ratio": None if ratio is None else round(ratio, 4),
        "floor": floor,
        "good": good,
        "better": better,
        "holds": None,
        "load": round(load, 2),
    }
    if ratio is None:
        line["reason"] = "not measured"
    elif load > BUSY:
        line["reason"] = f"load {load:.2f} is above {BUSY}: not judged"
    elif floor is not None:
        line["holds"] = ratio >= floor if better == "higher" else ratio <= floor
    print(json.dumps(line | details), flush=True)
    return line
