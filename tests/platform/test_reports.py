"""Reports of what went wrong in other systems: for each there is a test here that is named by it."""

import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

REPORTS = {
    "verl_2325": "a wait without an end, two hours into a collective",
    "verl_3873": "a hang at the second rollout step",
    "verl_3895": "an asynchronous run that idles without an error",
    "nemo_rl_3238": "one slow rollout keeps a step from filling; the same batch is drawn again on resume",
    "verl_288": "a code checker stuck in a busy loop that a coroutine's timeout cannot stop",
    "areal_1290": "stable with one engine, collapsing with another",
    "verl_2996": "old and new log-probabilities differ on-policy",
    "verl_5355": "an RLOO that learns elsewhere does not here: definitions differ",
    "tinker_cookbook_822": "unclipped importance weights, three steps stale, thirtyfold KL",
    "slime_2278": "a queue without a bound that feeds the stalest first",
    "trl_5312": "weights silently not synchronised",
    "miles_1724": "a recovered engine serves before it has the published version",
    "nemo_rl_3944": "weights streamed to or from a peer that is dead after a restart",
    "nemo_rl_3599": "a resume that skips prompts, those of long rollouts above all",
    "slime_1695": "a gap of log-probabilities after a resume",
    "trl_5224": "drift by tokenising again",
    "hud_python_480": "one malformed tool call kills the rollout",
    "verifiers_2414": "thousands of sandboxes that nobody owns",
    "prime_rl_2835": "an outage that is answered by a storm of calls",
    "skyrl_292": "memory and disks that fill up with the number of steps",
    "verl_2205": "documented installations that conflict",
    "torchforge_203": "nobody can tell why the reward drops",
    "the_quick_start_fits_on_forty_lines": "own count: a job file of a thousand lines",
}


@cache
def names() -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in TESTS.rglob("test_*.py"):
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE):
            found[name] = path
    return found


@pytest.mark.parametrize("report", sorted(REPORTS))
def test_a_test_is_named_by_the_report(report: str) -> None:
    pattern = re.compile(rf"(^|_){re.escape(report)}(_|$)")
    assert any(pattern.search(name.removeprefix("test_")) for name in names()), REPORTS[report]


def test_every_line_of_the_table_is_there() -> None:
    assert len(REPORTS) == 23
