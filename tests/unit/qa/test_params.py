import json
from importlib import resources

import pytest

from temper.qa.manifest import Manifest, parse
from temper.qa.params import effective
from temper.runtime.errors import Rejected


@pytest.fixture(scope="module")
def calc() -> Manifest:
    return parse((resources.files("temper.qa") / "assets/calc/env.toml").read_text())


def test_an_override_replaces_one_default(calc: Manifest) -> None:
    assert json.loads(effective(calc, "calc", '{"low": 3}')) == {
        "forms": ["n*n", "n[+-*]n[+-]n"],
        "high": 999,
        "low": 3,
        "suffix": "=",
    }


@pytest.mark.parametrize("text", ['{"low": NaN}', '{"low": Infinity}', "[" * 100_000])
def test_what_is_no_json_is_refused_and_never_an_internal_error(calc: Manifest, text: str) -> None:
    with pytest.raises(Rejected):
        effective(calc, "calc", text)


def test_a_default_that_json_cannot_carry_is_refused() -> None:
    text = (resources.files("temper.qa") / "assets/calc/env.toml").read_text()
    dated = parse(text.replace("default = 999", "default = 2026-01-01"))
    with pytest.raises(Rejected, match="cannot be written as JSON"):
        effective(dated, "calc", "")
