"""The promise of the quick start: what `temper run examples/quickstart.toml` reaches, and how long it takes.

The command runs as a user types it, in a process of its own on a fresh data directory, once for each seed. All numbers are of held-out
tasks that training never samples (256 per domain, T = 1), measured by the job before and after. Every line is the worst seed:

    quickstart_mean_pass   mean pass@1 after / 0.85
    quickstart_calc_pass   pass@1 of calc after / 0.9
    quickstart_start       mean pass@1 before / 0.5          the warm start may not be the result
    quickstart_drop        largest fall of a domain / 0.03   nothing is unlearned
    quickstart_wall        seconds of the whole command / 240

    python -m bench.quickstart                   seeds 0, 1, 2
    python -m bench.quickstart --seeds 7         another one
    python -m bench.quickstart --from-scratch    examples/from_scratch.toml instead, seed 0, 600 seconds
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bench.result import report

ROOT = Path(__file__).parents[1]
MIN_MEAN, MIN_CALC, MAX_START, MAX_DROP = 0.85, 0.9, 0.5, 0.03
GIVE_UP = 3  # times the promised wall time


@dataclass(frozen=True, slots=True)
class Promise:
    """A job file and its time."""

    name: str
    wall_s: float
    """Seconds of the whole command."""


QUICK, SCRATCH = Promise("quickstart", 240.0), Promise("from_scratch", 600.0)


@dataclass(frozen=True, slots=True)
class Run:
    """One finished run."""

    seed: int
    wall_s: float
    summary: dict[str, Any]

    def passes(self, when: Literal["before", "after"]) -> dict[str, float]:
        """pass@1 by domain."""
        return {name: float(domain[when]) for name, domain in self.summary["domains"].items()}

    def mean(self, when: Literal["before", "after"]) -> float:
        """Mean pass@1 over domains."""
        passes = self.passes(when)
        return sum(passes.values()) / len(passes)

    def drop(self) -> float:
        """Largest fall of a domain; negative when all rose."""
        after = self.passes("after")
        return max(before - after[name] for name, before in self.passes("before").items())

    def details(self) -> dict[str, object]:
        """For the report."""
        summary = self.summary
        return {
            "seed": self.seed,
            "state": summary["state"],
            "domains": {
                name: [round(before, 3), round(self.passes("after")[name], 3)]
                for name, before in self.passes("before").items()
            },
            "mean": [round(self.mean("before"), 3), round(self.mean("after"), 3)],
            "command_s": round(self.wall_s, 1),
            "job_s": round(summary["wall_s"], 1),
            "groups": summary["groups"],
            "trainer_idle": round(summary["trainer_idle"], 3),
            "rollout_idle": round(summary["rollout_idle"], 3),
        }


def run(promise: Promise, seed: int, sets: Sequence[str]) -> Run:
    """The command, once. A job that misses its bounds exits with 1 and is a result all the same."""
    with tempfile.TemporaryDirectory(prefix="temper-bench-") as name:
        directory = Path(name)
        summary = directory / "summary.json"
        temper = Path(sys.executable).with_name("temper")
        command = [temper, "run", ROOT / f"examples/{promise.name}.toml", "--plain", "--seed", str(seed)]
        command += ["--summary", summary, "--data-dir", directory / "data"]
        command += [part for each in sets for part in ("--set", each)]
        began = time.monotonic()
        done = subprocess.run(
            command, check=False, timeout=GIVE_UP * promise.wall_s, stdout=sys.stderr, cwd=ROOT
        )
        wall_s = time.monotonic() - began
        if done.returncode not in (0, 1) or not summary.exists():
            raise SystemExit(f"temper run ended with exit code {done.returncode} and no summary")
        found = json.loads(summary.read_text())
        if any(domain["after"] is None for domain in found["domains"].values()) or not found["domains"]:
            raise SystemExit(f"the job was not evaluated to its end: {found['state']} {found['reason']}")
        return Run(seed, wall_s, found)


def publish(promise: Promise, runs: Sequence[Run], load: float) -> None:
    """The lines of one promise."""

    def line(
        claim: str, of: Callable[[Run], float], bound: float, better: Literal["higher", "lower"]
    ) -> None:
        worst = min if better == "higher" else max
        values = [of(each) for each in runs]
        report(
            f"{promise.name}_{claim}",
            worst(values) / bound,
            floor=1.0,
            good=None,
            better=better,
            load=load,
            values=[round(value, 4) for value in values],
            bound=bound,
        )

    for each in runs:
        print(json.dumps(each.details()), file=sys.stderr)
    line("mean_pass", lambda each: each.mean("after"), MIN_MEAN, "higher")
    line("calc_pass", lambda each: each.passes("after")["calc"], MIN_CALC, "higher")
    line("start", lambda each: each.mean("before"), MAX_START, "lower")
    line("drop", Run.drop, MAX_DROP, "lower")
    line("wall", lambda each: each.wall_s, promise.wall_s, "lower")


def main() -> None:
    """All seeds of one job file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", help="0 1 2, or 0 from scratch")
    parser.add_argument("--from-scratch", action="store_true")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for a trial run")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    promise = SCRATCH if given.from_scratch else QUICK
    seeds: list[int] = given.seeds or ([0] if given.from_scratch else [0, 1, 2])
    publish(promise, [run(promise, seed, given.set) for seed in seeds], load)


if __name__ == "__main__":
    main()
