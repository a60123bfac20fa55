"""The page about algorithms names all of them, and every knob that a job file may turn."""

from pathlib import Path

import pytest

from temper.trainer.algorithms import registry

PAGE = (Path(__file__).parents[2] / "docs/guides/algorithms.md").read_text()


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
