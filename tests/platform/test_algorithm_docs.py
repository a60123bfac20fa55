"""The page about algorithms names all of them, and every knob that a job file may turn."""

import tomllib
from pathlib import Path

import pytest

from temper.trainer.algorithms import algorithm, registry

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/guides/algorithms.md").read_text()
EXAMPLES = sorted((ROOT / "examples").glob("*.toml"))


@pytest.mark.parametrize("name", sorted(registry()))
def test_the_page_names_the_algorithm_and_its_knobs(name):
    entry = registry()[name]
    assert f"| `{name}` |" in PAGE
    missing = [knob for knob in (*entry.params, *entry.choices) if f"`{knob}`" not in PAGE]
    assert not missing


def test_the_page_names_every_choice():
    allowed = {
        value
        for entry in registry().values()
        for choice in entry.choices.values()
        for value in choice.allowed
    }
    assert not [value for value in sorted(allowed) if f"`{value}`" not in PAGE]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_no_example_turns_a_knob_that_does_nothing(path):
    for phase in tomllib.loads(path.read_text())["phase"]:
        chosen, given = algorithm(phase["algorithm"]), phase.get("params", {})
        numbers = {name: float(value) for name, value in given.items() if not isinstance(value, str)}
        words = {name: value for name, value in given.items() if isinstance(value, str)}
        settings = chosen.settings(numbers, words, max_staleness=1)
        assert chosen.warning(settings) == ""
