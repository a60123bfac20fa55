"""What watching costs: a job with the telemetry service over the same job without it.

A short stretch of the quick start (no evaluation) runs in turns on, off, off, on, each on a platform of its own. The ratio is
the median time of a run with telemetry over the median of one without; time is the job's
own, from its acceptance to its end, so that starting and stopping the platform does not count.

    python -m bench.telemetry            4 runs of 12 steps
    python -m bench.telemetry --rounds 3 more turns for a steadier median
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.result import report

ROOT = Path(__file__).parents[1]
JOB = ROOT / "examples/quickstart.toml"
LIMIT_S = 600.0
OFF = ("--without", "telemetry")
SHORT = ("eval.before=false", "eval.after=false", "eval.every=0", "eval.during_tasks=0", "gates={}")


def job_file(directory: Path) -> Path:
    """The quick start without its table of acceptance: a short job promises nothing."""
    text = JOB.read_text().partition("[accept]")[0]
    path = directory / "job.toml"
    path.write_text(text)
    return path


def run(steps: int, options: tuple[str, ...]) -> float:
    """Seconds of one job on a fresh platform."""
    sets = (*SHORT, f"phase.rl.steps={steps}", f"policy.checkpoint={JOB.parent / 'checkpoints/warmstart'}")
    with tempfile.TemporaryDirectory(prefix="temper-bench-") as name:
        directory = Path(name)
        summary = directory / "summary.json"
        subprocess.run(
            [
                *(
                    Path(sys.executable).with_name("temper"),
                    "run",
                    job_file(directory),
                    "--plain",
                    "--no-report",
                ),
                *("--summary", summary, "--data-dir", directory / "data", *options),
                *(part for each in sets for part in ("--set", each)),
            ],
            check=True,
            timeout=LIMIT_S,
            stdout=subprocess.DEVNULL,
            cwd=ROOT,
        )
        return float(json.loads(summary.read_text())["wall_s"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=2, help="runs with and runs without")
    parser.add_argument("--steps", type=int, default=12, help="steps of each run")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    seconds: dict[str, list[float]] = {"on": [], "off": []}
    for turn in range(given.rounds):
        order = ("on", "off") if turn % 2 == 0 else ("off", "on")
        for kind in order:
            seconds[kind].append(run(given.steps, () if kind == "on" else OFF))
            print(f"telemetry {kind}: {seconds[kind][-1]:.1f} s", file=sys.stderr)
    ratio = statistics.median(seconds["on"]) / statistics.median(seconds["off"])
    report(
        *("telemetry on / off", ratio),
        floor=1.05,
        good=1.02,
        better="lower",
        load=load,
        seconds_on=seconds["on"],
        seconds_off=seconds["off"],
    )


if __name__ == "__main__":
    main()
