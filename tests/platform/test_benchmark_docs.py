"""Every benchmark has its place on the page of benchmarks, and every line it may print a row there."""

import re
from pathlib import Path

import pytest
from bench.__main__ import HERE, NOT_SCRIPTS

PAGE = (HERE.parent / "docs/benchmarks.md").read_text()
SCRIPTS = sorted(path.stem for path in HERE.glob("*.py") if path.stem not in NOT_SCRIPTS)


def rows(script: str) -> str:
    """The rows of a script."""
    _, _, after = PAGE.partition(f"| **{script}** |")
    return re.split(r"^\| \*\*|^$", after, maxsplit=1, flags=re.MULTILINE)[0]


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_benchmark_has_its_rows_on_the_page(script: str) -> None:
    assert "| `" in rows(script)


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_line_that_a_benchmark_names_in_plain_words_has_a_row(script: str) -> None:
    text = Path(HERE / f"{script}.py").read_text()
    named = re.findall(r'\b(?:report|tell)\(\s*"([a-z0-9_]+)"', text)
    listed = re.findall(r"`([a-z0-9_*<>]+)`", rows(script))
    patterns = [re.compile(re.sub(r"\\\*|<.*?>", ".*", re.escape(each))) for each in listed]
    missing = [name for name in named if not any(pattern.fullmatch(name) for pattern in patterns)]
    assert not missing
